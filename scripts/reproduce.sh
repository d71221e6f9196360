#!/usr/bin/env bash
# Makes every table and picture of docs/results.md anew, from nothing, and what other pages quote.
#   scripts/reproduce.sh            in under 90 minutes on two cores
#   scripts/reproduce.sh --long     also 50,000 tokens on SmolLM2
#   scripts/reproduce.sh --quick    the same commands on a few tokens, to see that they run
# It works in .cache/results and copies from there. What is there is not measured again, so that a
# run that was stopped goes on.
# PYTHON names the interpreter (python3), VENV an environment to use as it is, DEMO the demo model.
set -euo pipefail
cd "$(dirname "$0")/.."

out=.cache/results publish=docs
texts=.cache/texts
smollm2=.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
demo=${DEMO:-src/tinygpt/data/demo.tinygpt}
venv=${VENV:-.venv}
python=$venv/bin/python
novel=4097 choice=2049 windows=12001 greedy=60 smoke=500 demo_long=50000 long=5000
keys=512,1024 depths=0.1,0.3,0.5,0.7,0.9 trials=2
lengths=128,512,2048 decode=64 prompts="100 2000 6000"
case "${1:-}" in
    "") ;;
    --long) long=50000 ;;
    --quick)
        out=.cache/results_quick publish=
        novel=60 choice=60 windows=300 greedy=3 smoke=10 demo_long=200 long=10
        keys=300 depths=0.5 trials=1 lengths=32 decode=4 prompts="20 40"
        ;;
    *)
        echo "reproduce.sh: $1 is neither --long nor --quick" >&2
        exit 2
        ;;
esac

say() { echo "reproduce.sh: $*" >&2; }

install() {
    [ "$venv" != .venv ] || scripts/setup.sh
    versus=(--versus mlx-lm)
    if ! "$python" -c 'import mlx_lm' 2> /dev/null; then
        versus=()
        say "mlx-lm is not here: its rows are left out"
    fi
}

quality() { # name, text, tokens, then options; "replace=exec" before it leaves no shell behind
    say "quality: $1"
    ${replace:-} "$python" -m tinygpt eval "$smollm2" --text "$texts/$2.txt" --tokens "$3" \
        --json "$out/$1.json" --resume "${@:4}" > /dev/null
}

precisions=(full fp16 int8 int4 int3 int2)
all_quality() { # two at a time, with one core each: what they say of speed is not used
    export OPENBLAS_NUM_THREADS=1
    say "quality: kivi_emma, whose progress is in $out/kivi_emma.log, and at the same time"
    # mlx-lm's own quantised caches take minutes a row
    replace=exec quality kivi_emma emma "$novel" --cache "${precisions[@]}" \
        ${versus[@]+"${versus[@]}"} 2> "$out/kivi_emma.log" &
    local peer=$!
    trap "kill $peer 2> /dev/null || true" EXIT
    other_quality
    wait "$peer" || {
        tail -n 3 "$out/kivi_emma.log" >&2
        exit 1
    }
    trap - EXIT
    unset OPENBLAS_NUM_THREADS
}

other_quality() {
    quality kivi_prideprejudice prideprejudice "$novel" --cache "${precisions[@]}"
    quality kivi_own own "$novel" --cache "${precisions[@]}"
    quality windows emma "$windows" --cache full sink=0,window=260 \
        sink=4,window=256,positions=absolute sink=4,window=256 int8,sink=4,window=256 \
        int4,sink=4,window=256
    quality defaults prideprejudice "$choice" --cache int8 int8,group=64 int8,group=128 \
        int8,residual=0 int8,residual=128 int4 int4,group=64 int4,group=128 int4,residual=0 \
        int4,residual=8 int4,residual=64 int4,residual=128 int4,first_fp=0 int3 int3,residual=128 \
        int2 int2,residual=128
    say "passkey"
    "$python" -m tinygpt eval "$smollm2" --passkey --lengths "$keys" --depths "$depths" \
        --trials "$trials" --cache full int8 int4 int2 sink=4,window=256 int4,sink=4,window=256 \
        --json "$out/passkey.json" --resume > /dev/null
}

sample() { # name, then options: the 500-token smoke test
    [ -f "$out/$1.json" ] && return
    say "sample: $1"
    "$python" -m tinygpt sample "$smollm2" --prompt "Once upon a time" --tokens "$smoke" \
        --temperature 0.6 --seed 7 --ignore-eos --stats-json "$out/$1.json" "${@:2}" > /dev/null
}

long_run() { # name, model, tokens
    [ -f "$out/$1.json" ] && return
    say "generation: $1"
    "$python" scripts/bench/long_run.py "$2" "$3" int8,sink=4,window=256 "$out/$1.json"
}

draw() {
    "$python" -c 'import matplotlib' 2> /dev/null ||
        "$python" -m pip install --quiet --disable-pip-version-check matplotlib || {
        say "matplotlib is not here: the pictures are left out"
        return 0
    }
    say "pictures"
    local names=(kivi_emma.json windows.json passkey.json bench.json long_smollm2.json)
    [ ! -f "$out/long_demo.json" ] || names+=(long_demo.json)
    "$python" -m tinygpt plot "${names[@]/#/$out/}" -o "$out" > /dev/null
    "$python" -m tinygpt attention "$smollm2" --text "$texts/emma.txt" --tokens 512 --layer 20 \
        --window 256 --json "$out/sinks_smollm2.json" -o "$out" > /dev/null
    [ ! -f "$demo" ] || "$python" -m tinygpt attention "$demo" --text "$texts/persuasion.txt" \
        --tokens 512 --layer 3 --window 128 --json "$out/sinks_demo.json" -o "$out" > /dev/null
}

install
PYTHON=$python scripts/fetch_model.sh "$python"
"$python" scripts/fetch/texts.py "$texts"
mkdir -p "$out"

"$python" scripts/bench/machine.py "$out/machine.json"
[ -f "$out/bytes.json" ] || "$python" scripts/bench/cache_bytes.py "$out/bytes.json"
"$python" -m tinygpt eval "$smollm2" --greedy "$greedy" --cache fp32 fp16 bf16 int8 int4 int3 int2 \
    int8,residual=0 int4,residual=0 int3,residual=0 int2,residual=0 \
    --json "$out/greedy.json" --resume > /dev/null
sample smoke_plain --kv-quantize int8
sample smoke_streaming --kv-quantize int8 --streaming-llm-sink 4 --streaming-llm-window 256
all_quality
if [ ! -f "$out/bench.json" ]; then
    say "bench"
    "$python" -m tinygpt bench "$smollm2" --lengths "$lengths" --tokens "$decode" --roofline \
        --json "$out/bench.json" --cache full int8 int4 int8,sink=4,window=256 > /dev/null
fi
if [ ! -f "$out/decode.json" ] && [ -n "${versus[*]-}" ]; then
    say "decode, beside mlx-lm"
    "$python" scripts/bench/decode.py "$smollm2" --text "$texts/emma.txt" --json "$out/decode.json" \
        --lengths $prompts --peer-dense-from 1000 --turns 5
fi
if [ -f "$demo" ]; then
    long_run long_demo "$demo" "$demo_long"
else
    say "$demo is not here: the long generation on the demo model is left out"
fi
long_run long_smollm2 "$smollm2" "$long"
draw
"$python" scripts/results/page.py "$out" > "$out/results.md"
if [ -n "$publish" ]; then
    mkdir -p "$publish/results"
    cp "$out"/*.json "$publish/results/"
    for picture in "$out"/*.png; do [ ! -f "$picture" ] || cp "$picture" "$publish/results/"; done
    "$python" scripts/results/page.py "$publish/results" > "$publish/results.md"
    if [ -n "${versus[*]-}" ]; then
        "$python" scripts/results/quotes.py "$publish/results.md" README.md "$publish/cache.md"
    else
        say "the README quotes rows of mlx-lm: README.md and $publish/cache.md were left as they were"
    fi
fi
say "done: ${publish:-$out}/results.md"
