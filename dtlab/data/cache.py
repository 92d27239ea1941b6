"""Keep transformed columns between uses: not at all, in this process, or on local disk.

- The key is a hash of the content of the data and of the features, so a changed file or column list never
  meets an old entry.
- On disk an entry is a folder of ``.npy`` files, mapped into memory when loaded: the ranks of one host share
  the pages, and only what is read is loaded. It appears by rename; a torn or foreign one is rebuilt.
- With a maximum age (24 hours is usual) an older entry is stale. Who finds it first, by a lock, rebuilds it;
  all who come meanwhile wait and load the new one. Nobody starts on the old entry while the new one is made;
  who has loaded it before keeps its pages. Age is judged when an entry is asked for, not while it is used.
- ``counts`` says how each question was answered.

Taught in lesson 11 (a stale entry) and priced in lesson 14.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from dtlab.data import cache_entries
from dtlab.data.batch import Batch
from dtlab.data.cache_entries import Entry
from dtlab.data.prepare import discard, file_digest, kept_digest, prepare, read_manifest
from dtlab.errors import UserError

T = TypeVar("T")
CLOCKS_APART = 60.0  # seconds that an entry may seem to come from the future

_in_memory: dict[str, tuple[float, Any]] = {}


@dataclass
class CacheCounts:
    """How the questions to one ``Cache`` object were answered; they add up to the number of questions."""

    hits: int = 0
    """The entry was there."""
    misses: int = 0
    """There was none; this process made it."""
    rebuilds: int = 0
    """It was too old, torn or foreign; this process made it anew."""
    waits: int = 0
    """It was missing or unfit, and another process made it; this one waited and loaded it."""


class Cache:
    """Ask it for an entry; it is made when it is not kept.

    Args:
        kind: "none", "memory" (of this process) or "disk" (below ``folder``).
        folder: where the entries lie; on a disk of this host.
        max_age_seconds: entries older than that are rebuilt; None keeps them for ever.

    Raises:
        UserError: an unknown kind, or an age that is not above 0.

    >>> import tempfile
    >>> import torch
    >>> nothing = torch.zeros(2, 0, dtype=torch.int64)
    >>> def batches():
    ...     yield Batch(ids=torch.arange(2), categorical=nothing, dense=torch.zeros(2, 1))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     cache = Cache("disk", place, max_age_seconds=24 * 3600)
    ...     for _ in range(3):
    ...         table = cache.columns("a-key", 2, batches)
    ...     cache.counts
    CacheCounts(hits=2, misses=1, rebuilds=0, waits=0)
    """

    def __init__(
        self,
        kind: Literal["none", "memory", "disk"],
        folder: str | Path,
        *,
        max_age_seconds: float | None = None,
    ) -> None:
        if kind not in ("none", "memory", "disk"):
            raise UserError(f"data.cache = {kind!r}: choose none, memory or disk")
        if max_age_seconds is not None and not max_age_seconds > 0:
            raise UserError(
                f"max_age_seconds = {max_age_seconds!r}: give seconds above 0, 86400 for a day, or None"
            )
        self.kind, self.folder = kind, Path(folder)
        self.max_age_seconds = max_age_seconds
        self.counts = CacheCounts()

    def get(self, key: str, make: Callable[[], Entry]) -> Entry:
        """Return the features and splits that ``make()`` returns or once returned."""
        return self._get(key, make, lambda path: cache_entries.save(path, make()), cache_entries.load)

    def columns(self, key: str, rows: int, batches: Callable[[], Iterator[Batch]]) -> Batch:
        """Return ``rows`` rows as one table, written batch by batch: they need not fit into memory.

        ``batches()`` gives them in order. With kind "disk" the table is mapped, not loaded.
        """

        def load(folder: Path) -> Batch | None:
            table = cache_entries.load_table(folder)
            return table if table is not None and len(table) == rows else None

        return self._get(
            key,
            lambda: Batch.concat(list(batches())),
            lambda path: cache_entries.save_batches(path, rows, batches()),
            load,
        )

    def place(self, key: str) -> Path:
        """The folder of an entry of kind "disk"."""
        return self.folder / key

    def digest(self, paths: list[Path]) -> str:
        """Return the hash of the content of some files; with kind "disk" see ``kept_digest``."""
        if self.kind != "disk":
            return file_digest(paths)
        return kept_digest(paths, self.folder / "digests")

    def summary(self) -> dict[str, Any]:
        """Kind, age limit and counts, for a run record."""
        return {"kind": self.kind, "max_age_seconds": self.max_age_seconds, **asdict(self.counts)}

    def _get(
        self,
        key: str,
        make: Callable[[], T],
        save: Callable[[Path], dict[str, Any]],
        load: Callable[[Path], T | None],
    ) -> T:
        if self.kind == "none":
            self.counts.misses += 1
            return make()
        if self.kind == "memory":
            return self._from_memory(key, make)
        folder = self.place(key)
        built = unfit = False

        def build(path: Path) -> dict[str, Any]:
            nonlocal built
            built = True
            # The token tells two entries of one content apart: nobody discards another's good one.
            return {**save(path), "made": time.time(), "token": uuid.uuid4().hex}

        for _ in range(3):
            there = os.path.lexists(folder)
            found = read_manifest(folder)
            fresh = found is not None and self._is_fresh(found)
            manifest = prepare(folder, build, self._is_fresh)
            entry = load(folder)
            if entry is not None:
                if built:
                    self._count("rebuilds" if there or unfit else "misses")
                else:
                    self._count("hits" if fresh and not unfit else "waits")
                return entry
            unfit = True
            discard(folder, manifest)  # complete by its manifest, yet not readable as what it says
        self._count("rebuilds")
        return make()

    def _from_memory(self, key: str, make: Callable[[], T]) -> T:
        if key in _in_memory and self._is_fresh({"made": _in_memory[key][0]}):
            self._count("hits")
        else:
            self._count("rebuilds" if key in _in_memory else "misses")
            _in_memory.pop(key, None)  # first: two tables may be more than the memory holds
            _in_memory[key] = (time.time(), make())
        return _in_memory[key][1]

    def _is_fresh(self, manifest: dict[str, Any]) -> bool:
        if self.max_age_seconds is None:
            return True
        made = manifest.get("made")
        if not isinstance(made, int | float):
            return False
        return -CLOCKS_APART <= time.time() - made <= self.max_age_seconds

    def _count(self, answer: str) -> None:
        setattr(self.counts, answer, getattr(self.counts, answer) + 1)
