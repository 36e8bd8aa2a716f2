#!/usr/bin/env bash
# Makes .venv: a link to a virtual environment in the user's cache, keyed by the Python version and by the ranges in versions.yml,
# so that a fresh clone reuses it. An interrupted run leaves nothing that the next one would take for whole.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tenfold

python=
for candidate in python3.11 python3.12 python3.13 python3; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "tools/venv.sh: no Python 3.11 to 3.13 found; install python3 (Debian 12: apt-get install python3 python3-venv)" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "tools/venv.sh: installing python3-venv"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
    else
        echo "tools/venv.sh: $python lacks the module ensurepip; install python3-venv" >&2
        exit 1
    fi
fi

mkdir -p "$cache"
requirements=$(mktemp "$cache/requirements.XXXXXX")
trap 'rm -f "$requirements"' EXIT
sed -n '/^python_dev:/,/^[^ ]/s/^ *- "\(.*\)"/\1/p' versions.yml >"$requirements"
key=$({ "$python" -VV; cat "$requirements"; } | sha256sum | cut -c1-12)
target=$cache/venv-$key

exec 9>"$cache/venv.lock"
flock -n 9 || { echo "tools/venv.sh: waiting for another run that makes the virtual environment"; flock -w 900 9; }
if [ ! -e "$target/.complete" ]; then
    echo "tools/venv.sh: making the virtual environment (about a minute)"
    rm -rf "$target"
    "$python" -m venv "$target"
    "$target/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
    touch "$target/.complete"
fi
# A real folder of an older checkout gives way; anything else named .venv is a link of ours.
[ -L .venv ] || rm -rf .venv
ln -sfn "$target" .venv
