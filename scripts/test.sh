#!/usr/bin/env bash
# Sets everything up in .venv, then runs the tests; arguments go to pytest.
#   scripts/test.sh                  all of them
#   scripts/test.sh -k streaming     as pytest would
# A second run installs nothing and fetches nothing. PYTHON names the interpreter (python3).
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python

fetch_model() {
    scripts/fetch_model.sh "$python" && return 0
    echo "************************************************************************" >&2
    echo "SmolLM2 could not be fetched: every test marked 'real' is going to SKIP." >&2
    echo "************************************************************************" >&2
}

scripts/setup.sh
fetch_model
exec "$python" -m pytest "$@"
