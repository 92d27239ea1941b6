"""Which checkpoint a run goes on from: the newest one that every rank can read (lesson 13)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch.distributed as dist

from dtlab.errors import UserError
from dtlab.ranks import agreement
from dtlab.train.checkpoint_entry import together
from dtlab.train.checkpoint_read import problem_with
from dtlab.train.checkpoint_store import CheckpointInfo, candidates, describe

__all__ = ["newest_for_all"]


def newest_for_all(
    folder: Path, group: dist.ProcessGroup | None, say: Callable[[str], None]
) -> CheckpointInfo | None:
    """The newest checkpoint in ``folder`` that is complete on every rank; None without one (collective).

    ``say`` takes a line for each newer one that is passed over: torn, damaged, or not seen by a rank.

    Raises:
        UserError: rank 0 has a complete one, but there is none that all ranks can use.
    """
    rank, size = agreement.rank(group), agreement.world_size(group)
    names = together(group, folder, lambda: [path.name for path in candidates(folder)])[0]
    apart: set[int] = set()
    for name in names:
        path = folder / name
        found = together(group, folder, partial(_look_at, path, rank, size))
        bad = {number: text for number, (text, _) in enumerate(found) if text is not None}
        if not bad:
            return describe(path)[0]
        first, text = next(iter(bad.items()))
        apart |= {number for number, (_, is_there) in enumerate(found) if not is_there and 0 not in bad}
        say(f"{name} passed over: {text}" + (f" (seen by rank {first})" if first else ""))
    if apart:  # to begin anew would throw away what rank 0 has
        who = ", ".join(map(str, sorted(apart)))
        raise UserError(
            f"checkpoint folder {str(folder)!r}: rank {who} does not see the checkpoints that rank 0 sees: "
            "name a folder that all hosts share, or copy it to each"
        )
    return None


def _look_at(path: Path, rank: int, size: int) -> tuple[str | None, bool]:
    return problem_with(path, rank, size), path.is_dir()
