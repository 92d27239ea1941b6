#!/usr/bin/env bash
# What needs a CUDA card, in under five minutes on one card: tests/gpu, then the MFU of the small GPT.
# PYTHON names an interpreter that has torch for the card, pytest and the package's dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || {
    echo "$python sees no CUDA card: nothing here can be tried" >&2
    exit 1
}
timeout 150 "$python" -m pytest -q tests/gpu
timeout 150 "$python" -m benchmarks.mfu "$@"
