#!/bin/sh
# Creates the virtual environment $1 with this package (editable) and the development tools.
set -eu
venv=$1
die() { echo "error: $1" >&2; exit 3; }

command -v git >/dev/null || die "git is not installed: install it with your package manager"
python=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || die "no Python 3.11 or newer found: install one, or name it: make venv PYTHON=/path/to/python3"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$python has no venv module: install the package python3-venv (Debian, Ubuntu) and run again"

# A venv that was moved or whose Python was removed cannot be repaired by pip.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || rm -rf "$venv"
[ -d "$venv" ] || "$python" -m venv "$venv" || die "$python could not create $venv (see above)"
echo "installing the Python packages into $venv" >&2
log=$venv/pip.log
if ! "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --editable '.[dev]' >"$log" 2>&1; then
    cause=$(grep 'ERROR: ' "$log" | tail -n 1 | sed 's/.*ERROR: //')
    die "pip could not install the packages (${cause:-no cause given}; all of it in $log): is there a network?"
fi
touch "$venv/.stamp"
