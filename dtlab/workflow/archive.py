"""``model.tar.gz``: the model, its card, and the code that serves it, in the layout that SageMaker unpacks.

::

    model/model.safetensors, model/model.json     weights and features, as dtlab train left them
    inputs.json                                   the columns of a request
    card.json                                     metrics, latency, data version, commit
    code/inference.py, code/requirements.txt      what the PyTorch inference toolkit starts
    code/dtlab/...                                the package itself

No times and no owners are in it: the same content gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtlab.files import write_tar_gz
from dtlab.train.package import DESCRIPTION, WEIGHTS
from dtlab.workflow.serving import INPUTS

__all__ = ["ARCHIVE", "CARD", "write_archive"]

ARCHIVE, CARD = "model.tar.gz", "card.json"
_INFERENCE = '''"""Entry point of the inference toolkit."""

from dtlab.workflow.serving import input_fn, model_fn, output_fn, predict_fn

__all__ = ["input_fn", "model_fn", "output_fn", "predict_fn"]
'''
# Beside the torch of the image, which stays as it is.
_REQUIREMENTS = "numpy>=2.0\npyarrow>=18.0\nsafetensors>=0.5\ntorchmetrics>=1.6\n"


def write_archive(
    target: Path, model: Path, inputs: Mapping[str, str], card: Mapping[str, Any], *, with_code: bool = True
) -> list[str]:
    """Write the archive; it appears by rename. Returns the names in it.

    Args:
        target: the file.
        model: folder that ``save_package`` wrote.
        inputs: column -> type of a request.
        card: what to know about the model, as JSON values.
        with_code: whether the code that serves it goes along.

    Raises:
        UserError: the place cannot be written.
    """
    entries: dict[str, bytes | Path] = {f"model/{name}": model / name for name in (DESCRIPTION, WEIGHTS)}
    entries[INPUTS] = _text(inputs)
    entries[CARD] = _text(card)
    if with_code:
        entries["code/inference.py"] = _INFERENCE.encode()
        entries["code/requirements.txt"] = _REQUIREMENTS.encode()
        package = Path(__file__).resolve().parent.parent
        for file in sorted(package.rglob("*")):
            if file.is_file() and file.suffix in (".py", ".csv", ".typed"):
                entries[f"code/dtlab/{file.relative_to(package).as_posix()}"] = file
    return write_tar_gz(target, entries, "pipeline.folder")


def _text(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, default=str) + "\n").encode()
