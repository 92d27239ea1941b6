"""The cards that the catalogue knows, by name and memory: what a memory bill is held against (lesson 01)."""

from functools import cache

from dtlab.cost.catalogue import instances


@cache
def cards() -> dict[str, int]:
    """Bytes of memory of each kind of GPU, smallest first, under a name that carries its size.

    >>> cards()["V100 32 GiB"] // 2**30
    32
    """
    found = {
        f"{one.gpu} {one.gpu_memory_gib:g} GiB": one.gpu_memory_bytes
        for one in instances()
        if one.gpu and one.gpu_memory_gib and "rainium" not in one.gpu
    }
    return dict(sorted(found.items(), key=lambda card: (card[1], card[0])))


def smallest_card(num_bytes: float, share: float = 0.8) -> str | None:
    """The first card of which `num_bytes` take less than `share`; None when there is none.

    0.8 is where `MemoryBill.verdict` says "fits".

    >>> smallest_card(20e9)
    'V100 32 GiB'
    >>> smallest_card(400e9) is None
    True
    """
    return next((name for name, size in cards().items() if num_bytes < share * size), None)
