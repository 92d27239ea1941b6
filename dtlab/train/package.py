"""A trained model on disk: weights as safetensors, everything else as one JSON file.

Nothing in the folder is ever unpickled, so a folder from a stranger can at worst be refused.
It appears by rename: a reader sees all of it or none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dtlab.data.features import Features
from dtlab.data.text import VOCAB_SIZE
from dtlab.errors import UserError
from dtlab.files import appears_whole
from dtlab.models.deepfm import DeepFM
from dtlab.models.gpt import GPT
from dtlab.train.config import TrainConfig
from dtlab.train.staging import as_written

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FORMAT = 1
# What torch says when a tensor is too large to be made.
_NO_ROOM = re.compile(r"allocate|out of memory|[Oo]verflow|invalid size|too large", re.IGNORECASE)


@dataclass(frozen=True)
class Package:
    """What :func:`load_package` gives back."""

    model: nn.Module
    features: Features | None
    """None for a model of text, which needs none."""
    config: TrainConfig
    about: dict[str, Any]


def build_model(config: TrainConfig, features: Features | None) -> nn.Module:
    """The model that ``config`` names, in the run's type of number: a GPT for text, else a DeepFM.

    Raises:
        UserError: it does not fit into memory.
    """
    try:
        return _built_model(config, features)
    except (RuntimeError, MemoryError, OverflowError) as error:
        if not _NO_ROOM.search(str(error)):
            raise
        fields = "model.dim and model.num_layers" if features is None else "data.hash_buckets and model.dim"
        raise UserError(
            f"the model does not fit into memory ({' '.join(str(error).split())[-80:]}): lower {fields}"
        ) from None


def _built_model(config: TrainConfig, features: Features | None) -> nn.Module:
    shape = config.model
    model: nn.Module
    if features is None:
        dim = 128 if shape.dim is None else shape.dim
        model = GPT(VOCAB_SIZE, shape.sequence, dim, shape.num_layers, shape.num_heads, dropout=shape.dropout)
    else:
        model = DeepFM(
            features.cardinalities,
            features.num_dense,
            dim=8 if shape.dim is None else shape.dim,
            hidden=shape.hidden,
            dropout=shape.dropout,
            embedding_dropout=shape.embedding_dropout,
        )
    return model.to(getattr(torch, config.run.dtype))


def save_package(
    folder: Path,
    model: nn.Module | Mapping[str, Tensor],
    features: Features | None,
    config: TrainConfig,
    about: dict[str, Any],
) -> Path:
    """Write ``model``, or its whole state dict, and what is needed to use it to ``folder``.

    Raises:
        UserError: the folder cannot be written.
    """
    weights = model.state_dict() if isinstance(model, nn.Module) else model
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    description = {
        "format": FORMAT,
        "config": config.to_dict(),
        "features": None if features is None else features.to_json(),
        "about": about,
    }
    with appears_whole(folder, "checkpoint") as beside:
        beside.mkdir()
        save_file(as_written(state), str(beside / WEIGHTS))
        (beside / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
    return folder


def load_package(folder: Path) -> Package:
    """Read what :func:`save_package` wrote.

    Raises:
        UserError: the folder or a file of it is missing, torn or of another format.
    """
    if (folder / "model" / DESCRIPTION).is_file():
        folder = folder / "model"  # the run's folder was named
    for name in (DESCRIPTION, WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(
                f"checkpoint = {str(folder)!r}: {name} is missing; name a folder that dtlab train left"
            )
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if description["format"] != FORMAT:
            raise UserError(
                f"checkpoint format = {description['format']!r}: this dtlab reads format {FORMAT}"
            )
        config = TrainConfig.from_dict(description["config"])
        text = description["features"]
        features = None if text is None else Features.from_json(text)
        weights = load_file(str(folder / WEIGHTS))
        model = build_model(config, features)
        model.load_state_dict(weights)
        about = description["about"]
    except UserError:
        raise
    except Exception as error:  # whatever odd content leads to, it is the folder that is wrong
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"checkpoint = {str(folder)!r}: cannot be read ({reason}); train again or name another"
        ) from None
    return Package(model.eval(), features, config, about)
