#!/usr/bin/env bash
# What needs a CUDA card, in under five minutes on one card: the GPU tests, then the MFU of the small GPT.
# A learners' copy has no tests: there it is the MFU alone.
# PYTHON names an interpreter that has torch for the card, pytest and the package's dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || {
    echo "$python sees no CUDA card: nothing here can be tried" >&2
    exit 1
}
if [ -d tests ]; then timeout 150 "$python" -m pytest -q tests/gpu; fi
timeout 150 "$python" -m benchmarks.mfu "$@"
