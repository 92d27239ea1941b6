"""Writing one checkpoint, step by step on all ranks, so that it is whole or leaves no trace (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from dtlab.errors import UserError
from dtlab.ranks import agreement
from dtlab.train.checkpoint_entry import together
from dtlab.train.checkpoint_files import seal, write_tensors
from dtlab.train.checkpoint_sharded import save_sharded
from dtlab.train.checkpoint_store import SHARDED, TENSORS, Store

__all__ = ["Job", "write"]


@dataclass(frozen=True)
class Job:
    """One save as a rank hands it over; nothing in it changes any more."""

    head: Mapping[str, Any]
    """What ``state.json`` says, apart from what is only known after writing."""
    plain: Mapping[str, Tensor]
    """Tensors that rank 0 writes; empty on the other ranks."""
    sharded: Mapping[str, Tensor]
    """DTensors, of which each rank writes its shards."""
    own_trees: Mapping[str, Any]
    """This rank's own parts; rank 0 collects and writes them, they are small."""
    own_tensors: Mapping[str, Tensor]


def write(job: Job, store: Store | None, folder: Path, group: dist.ProcessGroup | None) -> None:
    """Write a checkpoint (collective). ``store`` is rank 0's, None elsewhere.

    Raises:
        UserError: on every rank, whichever failed; what was written is removed.
    """
    step = int(job.head["step"])
    name, beside_name = together(group, folder, lambda: store.begin(step) if store else ("", ""))[0]
    beside = folder / beside_name
    try:
        owns = agreement.gather((job.own_trees, job.own_tensors), group=group)

        def write_common() -> dict[str, Any]:
            if owns is None:
                return {}
            own = {path: tensor for _, tensors in owns for path, tensor in tensors.items()}
            return {TENSORS: write_tensors(beside / TENSORS, {**job.plain, **own})}

        files = together(group, folder, write_common)[0]
        if job.sharded:
            together(group, folder, lambda: save_sharded(beside / SHARDED, job.sharded, group))
            _check_shared(together(group, folder, lambda: _names(beside / SHARDED)), folder)
            for found in together(group, folder, lambda: _seal_share(beside / SHARDED, group)):
                files |= found

        def commit() -> None:
            if store is not None:
                now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
                ranks = [trees for trees, _ in owns or []]
                store.commit(name, beside, {**job.head, "ranks": ranks, "files": files, "saved_at": now})

        together(group, folder, commit)
    except BaseException:
        if store is not None:
            store.discard(beside)
        raise


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _check_shared(listings: list[list[str]], folder: Path) -> None:
    """Shards that lie on other hosts would be missed at the restart, which is too late."""
    apart = [str(rank) for rank, names in enumerate(listings) if names != listings[0]]
    if apart:
        raise UserError(
            f"checkpoint folder {str(folder)!r}: rank {', '.join(apart)} sees other files in it than rank 0: "
            "sharded tensors need a folder that all hosts share"
        )


def _seal_share(folder: Path, group: dist.ProcessGroup | None) -> dict[str, Any]:
    """Size and checksum of the files that are this rank's to read."""
    paths = sorted(folder.iterdir())[agreement.rank(group) :: agreement.world_size(group)]
    return {f"{SHARDED}/{path.name}": seal(path) for path in paths}
