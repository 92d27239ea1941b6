"""The steps of an epoch, and who looks on between them (lesson 05)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dtlab.data.batch import Batch
from dtlab.data.stream_loader import AnyLoader
from dtlab.errors import UserError

__all__ = ["Watcher", "global_steps", "require_steps"]


class Watcher(Protocol):
    """What happens between steps: see :class:`dtlab.train.watch.Watch`."""

    next_step: int
    """The number of steps done at which :meth:`look` is called next."""

    def look(self) -> bool:
        """Act on what is due; True ends the pass here."""


def global_steps(loader: AnyLoader, steps: int | None = None) -> Iterator[tuple[Batch, int]]:
    """``(this rank's batch, rows of the global batch)`` for each step; the count comes from the sampler.

    Stops after ``steps`` steps if given, leaving the loader at the position of the next one.

    Raises:
        UserError: a loader that does not know its global batches, as a plain ``DataLoader``.
    """
    sampler = require_steps(loader).sampler
    if steps is not None and steps < 1:
        return
    for number, batch in enumerate(loader, start=1):
        yield batch, sampler.last_size
        if number == steps:
            return


def require_steps(loader: AnyLoader) -> AnyLoader:
    """The loader, if it counts the steps and rows of the global batches.

    Raises:
        UserError: it is another loader, a generator or a list.
    """
    if not hasattr(getattr(loader, "sampler", None), "steps_left"):
        raise UserError(
            f"loader = a {type(loader).__name__}: give a dtlab.Loader, or data_loader(dataset, sampler) "
            "for a torch data set; another loader's batches go to trainer.step(batch, rows)"
        )
    return loader
