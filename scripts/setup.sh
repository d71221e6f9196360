#!/usr/bin/env bash
# Installs tinygpt into .venv, with what its tests, checks and comparisons need.
#   scripts/setup.sh             everything
#   scripts/setup.sh --runtime   only what a run needs
# A second run installs nothing, and a run after --runtime adds what is missing.
# PYTHON names the interpreter (python3).
set -euo pipefail
cd "$(dirname "$0")/.."

base=${PYTHON:-python3}
python=.venv/bin/python
runtime=.venv/runtime everything=.venv/installed # say for what the packages were installed

say() { echo "setup.sh: $*" >&2; }

case "$*" in
    "") goal=$everything ;;
    --runtime) goal=$runtime ;;
    *)
        say "it takes --runtime or nothing, not: $*"
        exit 2
        ;;
esac

is_current() { # one of these stamps is of this pyproject.toml and this interpreter
    local stamp
    [ -x "$python" ] || return 1
    for stamp; do
        [ "$(cat "$stamp" 2> /dev/null)" != "$wanted" ] || return 0
    done
    return 1
}

make_environment() {
    if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        say "tinygpt needs Python 3.10 or newer, and $base is $("$base" --version)"
        exit 1
    fi
    "$base" -m venv --clear .venv || {
        say "no virtual environment; on Debian: apt-get install python3-venv"
        exit 1
    }
}

pip_install() { "$python" -m pip install --quiet --disable-pip-version-check -e "$1"; }

install_tools() {
    pip_install '.[dev]'
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        pip_install '.[oracle]' ||
            say "mlx-lm could not be installed: the tests that compare with it are skipped"
    fi
}

install_python_packages() {
    wanted=$("$base" --version; cksum pyproject.toml)
    ! is_current "$goal" "$everything" || return 0
    say "setting up .venv, once; this takes a minute or two"
    is_current "$runtime" || make_environment
    if [ "$goal" = "$runtime" ]; then pip_install .; else install_tools; fi
    echo "$wanted" > "$goal"
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
