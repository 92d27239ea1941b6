"""A model as one safetensors file, for other tools and from them (lesson 13).

The keys are those of the bare model: no ``module.`` of a data-parallel wrapper, no ``_orig_mod.`` of
``torch.compile``. When reading, such a prefix is taken off only if the model has no use for it, so a model
with a child that is really named ``module`` keeps its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.files import appears_whole
from dtlab.parallel.sharded import check_whole
from dtlab.parallel.whole import whole
from dtlab.ranks import agreement
from dtlab.train.checkpoint_entry import enter_all
from dtlab.train.checkpoint_files import disk_error
from dtlab.train.checkpoint_parts import bare
from dtlab.train.checkpoint_sharded import is_sharded

__all__ = ["export_model", "import_model"]

_PREFIXES = ("module.", "_orig_mod.")


def export_model(model: nn.Module, path: str | Path, *, metadata: Mapping[str, str] | None = None) -> Path:
    """Write the weights and buffers of ``model`` to one file; rank 0 writes (collective if sharded).

    Sharded parameters are gathered one at a time; only rank 0 keeps them. Tied weights are stored once, under
    the first of their names.

    Raises:
        UserError: the place cannot be written.
        LateRankError: the model is sharded and a rank did not call this (gloo); it is named.

    >>> import tempfile
    >>> model, twin = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     import_model(twin, export_model(model, Path(folder) / "model.safetensors"))
    >>> torch.equal(model.weight, twin.weight)
    True
    """
    path, state, owners = Path(path), {}, set()
    is_writer = agreement.rank() == 0
    check_whole(model)
    if any(is_sharded(parameter) for parameter in model.parameters()):
        enter_all("export_model()")
    for name, tensor in bare(model).state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise UserError(f"{name} is a {type(tensor).__name__}: a safetensors file holds tensors only")
        joined = whole(tensor) if is_sharded(tensor) else tensor
        if is_writer and id(tensor) not in owners:
            state[name] = joined.detach().cpu().clone(memory_format=torch.contiguous_format)
        owners.add(id(tensor))
    if is_writer:
        try:
            with appears_whole(path, "path") as beside:
                save_file(state, str(beside), metadata={"format": "pt", **(metadata or {})})
        except SafetensorError as error:
            raise UserError(disk_error(error, path.parent) or f"path = {str(path)!r}: {error}") from error
    return path


def import_model(model: nn.Module, path: str | Path) -> None:
    """Fill ``model`` from a safetensors file: all of its weights and buffers, or an error and no change.

    Raises:
        UserError: no such file, not safetensors, keys missing or left over, another shape.
    """
    path = Path(path)
    try:
        found = load_file(str(path))
    except (OSError, SafetensorError) as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(f"path = {str(path)!r}: not a readable safetensors file ({reason})") from None
    model = bare(model)
    own = model.state_dict(keep_vars=True)
    found = _without_wrapper(found, own)
    first: dict[int, str] = {}
    for name, tensor in own.items():  # tied weights are stored under one of their names
        first.setdefault(id(tensor), name)
        if name not in found and first[id(tensor)] in found:
            found[name] = found[first[id(tensor)]]
    problems = [
        *(f"{name} is missing" for name in own if name not in found),
        *(f"{name} is not in the model" for name in found if name not in own),
        *(
            f"{name} has shape {list(found[name].shape)}, the model's has {list(tensor.shape)}"
            for name, tensor in own.items()
            if name in found and found[name].shape != tensor.shape
        ),
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise UserError(f"path = {str(path)!r} is of another model: {'; '.join(problems[:3])}{more}")
    model.load_state_dict(found)


def _without_wrapper(found: Mapping[str, Tensor], own: Mapping[str, object]) -> dict[str, Tensor]:
    """Take off a wrapper's prefix where every key has it and the model's own keys do not."""
    keys = dict(found)
    while keys and not any(name in own for name in keys):
        prefix = next((p for p in _PREFIXES if all(name.startswith(p) for name in keys)), None)
        if prefix is None:
            break
        keys = {name.removeprefix(prefix): tensor for name, tensor in keys.items()}
    return keys
