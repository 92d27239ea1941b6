"""Which rows of some files are meant: those of one split, or of several (lesson 11).

A split rarely follows the borders of row groups. So its rows are numbered by themselves, and a file of one
byte a row, mapped by all ranks of a host, says where they lie.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

_CHUNK = 1 << 20


class Selection:
    """The rows whose code, in ``path``, is one of ``wanted``.

    Args:
        path: ``.npy`` file, [N] uint8: a code for every row of the files.
        wanted: codes.
        key: stands for the files, the codes and what is wanted, in the key of a cache.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.save(Path(place) / "codes.npy", np.array([0, 1, 0, 2, 0], dtype=np.uint8))
    ...     chosen = Selection(Path(place) / "codes.npy", (0,), "a key")
    ...     len(chosen), chosen.places(first=1, rows=4).tolist()
    (3, [1, 3])
    """

    def __init__(self, path: Path, wanted: tuple[int, ...], key: str) -> None:
        self.path, self.wanted, self.key = path, wanted, key
        self._codes = np.load(path, mmap_mode="r", allow_pickle=False)
        chunks = (self._codes[start : start + _CHUNK] for start in range(0, len(self._codes), _CHUNK))
        self._rows = sum(int(np.isin(chunk, wanted).sum()) for chunk in chunks)

    def __len__(self) -> int:
        """Rows that are meant."""
        return self._rows

    @property
    def num_stored(self) -> int:
        """Rows of the files."""
        return len(self._codes)

    def places(self, first: int, rows: int) -> np.ndarray:
        """Where, among the stored rows ``first`` to ``first + rows - 1``, those lie that are meant."""
        return np.flatnonzero(np.isin(self._codes[first : first + rows], self.wanted))

    def __reduce__(self) -> tuple:
        # A mapped array would travel to a worker process as bytes.
        return Selection, (self.path, self.wanted, self.key)
