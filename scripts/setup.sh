#!/usr/bin/env bash
# Installs tinygpt and what its tests need into .venv. A second run installs nothing.
# PYTHON names the interpreter (python3).
set -euo pipefail
cd "$(dirname "$0")/.."

base=${PYTHON:-python3}
python=.venv/bin/python

say() { echo "setup.sh: $*" >&2; }

install_python_packages() {
    # Reinstalled only when pyproject.toml or the interpreter has changed since the last time.
    local stamp=.venv/installed wanted
    wanted=$("$base" --version; cksum pyproject.toml)
    if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        say "tinygpt needs Python 3.10 or newer, and $base is $("$base" --version)"
        exit 1
    fi
    say "setting up .venv, once; this takes a minute or two"
    "$base" -m venv --clear .venv || {
        say "no virtual environment; on Debian: apt-get install python3-venv"
        exit 1
    }
    "$python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        "$python" -m pip install --quiet --disable-pip-version-check -e '.[oracle]' ||
            say "mlx-lm could not be installed: the tests that compare with it are skipped"
    fi
    echo "$wanted" > "$stamp"
}

install_blas() {
    # Linux only, and only where the packages above brought no OpenBLAS: prefill is 25 times slower.
    [ "$(uname -s)" = Linux ] || return 0
    "$python" -c 'import sys; from tinygpt.blas import preload; sys.exit(preload().missing)' &&
        return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        { apt-get -qq update && apt-get -qq install -y libopenblas0-pthread; } > /dev/null 2>&1 &&
            return 0
    fi
    say "no OpenBLAS: everything runs, slowly; apt-get install libopenblas0-pthread helps"
}

install_python_packages
install_blas
