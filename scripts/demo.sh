#!/usr/bin/env bash
# Sets everything up in .venv, then generates with the embedded model: bounded and quantised.
# Arguments go to `tinygpt sample`; a second run installs nothing. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
exec .venv/bin/tinygpt sample --kv-quantize int8 --streaming-llm-sink 4 --streaming-llm-window 256 "$@"
