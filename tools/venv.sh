#!/usr/bin/env bash
# Make .venv from requirements.lock:  tools/venv.sh EXTRAS STAMP...
# EXTRAS is a list such as "lab" or "dev,bench". Each STAMP is a file whose name holds a checksum of
# pyproject.toml and the lock; it is written last, so an interrupted set-up is taken up again by the next run.
# PYTHON names the interpreter (default: the first of python3.11, 3.12, 3.13 that works).
# TORCH_INDEX, when set, is the package index for torch alone.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=$1
shift

supported='import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
        if "$candidate" -c "$supported" >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        echo "PYTHON=$PYTHON does not run or is not Python 3.11, 3.12 or 3.13" >&2
    else
        echo "dtlab needs Python 3.11, 3.12 or 3.13 and found none of them: install one, or name it with make PYTHON=/path/to/python" >&2
    fi
    exit 1
}

if [ -e .venv ] && ! .venv/bin/python -c "$supported" >/dev/null 2>&1; then
    echo ".venv is there but its Python does not run or is not 3.11 to 3.13: remove it (make distclean) and try again" >&2
    exit 1
fi
if [ ! -e .venv ]; then
    python=$(find_python)
    echo "== making .venv with $("$python" --version)"
    if ! "$python" -m venv .venv; then
        rm -rf .venv
        echo "$python could not make a virtual environment: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2
        exit 1
    fi
fi

pip=(.venv/bin/python -m pip --disable-pip-version-check)
# torch first and alone: only torch is taken from TORCH_INDEX.
echo "== installing torch"
"${pip[@]}" install -c requirements.lock ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
echo "== installing dtlab[$extras]"
"${pip[@]}" install -c requirements.lock -e ".[$extras]"
# JupyterLab would otherwise ask about news, and fetch them: the lessons need no network.
settings=.venv/share/jupyter/lab/settings
mkdir -p "$settings"
echo '{"@jupyterlab/apputils-extension:notification": {"checkForUpdates": false, "fetchNews": "false"}}' \
    >"$settings/overrides.json"
rm -f .venv/.stamp-*
touch "$@"
