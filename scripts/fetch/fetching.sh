# What the fetch scripts share; to be sourced once $python, $name and $sha256 are set.
# A file that is right stays; a damaged one would be tested otherwise, and goes.
target=.cache/models/$name

checked() {
    "$python" - "$1" "$sha256" <<'PYTHON'
import hashlib, sys
digest = hashlib.sha256()
with open(sys.argv[1], "rb") as file:
    while block := file.read(1 << 20):
        digest.update(block)
sys.exit(digest.hexdigest() != sys.argv[2])
PYTHON
}

is_here() { [ -f "$target" ] && checked "$target"; }

make_room() { # $work is gone when the script ends
    rm -f "$target"
    mkdir -p .cache/models
    work=$(mktemp -d .cache/fetch.XXXXXX)
    trap 'rm -rf "$work"' EXIT
}
