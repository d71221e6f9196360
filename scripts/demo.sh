#!/usr/bin/env bash
# Sets up what a run needs in .venv, then generates with the embedded model: bounded and quantised.
# Arguments go to `tinygpt sample`, and later ones win; a second run installs nothing. PYTHON names
# the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh --runtime
echo "demo.sh: .venv/bin/tinygpt sample --kv-quantize int8 --streaming-llm-sink 4" \
    "--streaming-llm-window 256 --seed 7 --tokens 600 $*" >&2
exec .venv/bin/tinygpt sample --kv-quantize int8 --streaming-llm-sink 4 --streaming-llm-window 256 \
    --seed 7 --tokens 600 "$@"
