"""Which torch, CUDA and NCCL each rank runs, and who differs.

Ranks with different NCCL or torch versions may join and then hang or crash in the first collective. Pip
wheels carry their own NCCL, so looking at system libraries says nothing: the loaded version is asked on every
rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Versions = dict[str, str | None]


def local_versions() -> Versions:
    """Versions loaded in this process: ``torch``, ``cuda`` (the build's) and ``nccl``; None where absent."""
    import torch

    nccl: str | None = None
    if torch.version.cuda is not None and torch.cuda.is_available():
        try:
            nccl = ".".join(map(str, torch.cuda.nccl.version()))
        except Exception:  # a CUDA build without NCCL
            nccl = None
    # The local suffix (+cpu, +cu128) names the index a wheel came from; the CUDA version is compared by
    # itself.
    return {"torch": torch.__version__.split("+")[0], "cuda": torch.version.cuda, "nccl": nccl}


def differences(versions: Sequence[Mapping[str, str | None]]) -> str | None:
    """One line that names the ranks whose versions differ from most ranks', or None when all agree.

    Args:
        versions: what each rank reported, in rank order.

    Example:
        >>> differences([{"torch": "2.13.0"}, {"torch": "2.13.0"}, {"torch": "2.9.0"}])
        'rank 2 has torch 2.9.0, the other ranks have 2.13.0'
    """
    lines = []
    names = sorted({name for entry in versions for name in entry})
    for name in names:
        values = [entry.get(name) for entry in versions]
        if len(set(values)) < 2:
            continue
        # most_common keeps first-seen order among equals: with two ranks, rank 0 is the reference
        usual = Counter(values).most_common(1)[0][0]
        for rank, value in enumerate(values):
            if value != usual:
                others = "rank 0 has" if len(versions) == 2 else "the other ranks have"
                lines.append(f"rank {rank} has {name} {value or 'none'}, {others} {usual or 'none'}")
    return "; ".join(lines) or None
