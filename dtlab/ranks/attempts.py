"""Which start of a run is this? The ranks of several hosts agree on it before they meet (lesson 13).

After a failure torchrun starts the ranks of all hosts anew, in the store of before, and tells each a counter
of restarts: that of its own host. Hosts whose ranks did not fail first count one less
(pytorch/pytorch#108158), so the counter names no start, and the store still holds what the ranks of the last
one wrote. So every process writes a word that nobody has written before, rank 0 reads them out, and all
answer to the list that holds their own.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from dtlab.ranks import meeting
from dtlab.ranks.membership import Membership

__all__ = ["of_this_start"]

_agreed: dict[str, str] = {}


def of_this_start(store: Any, m: Membership, timeout: float) -> Any:
    """``store`` with a prefix that the ranks of this start share and no earlier one had.

    A process lives for one start, so it agrees once. Where one process starts all ranks there is nothing to
    agree on, and the store is given back as it is.

    Raises:
        UserError: ranks did not come within ``timeout`` seconds; they are named.
    """
    if not m.counts_apart:
        return store
    import torch.distributed as dist

    if m.job not in _agreed:
        agree = _read_out if m.rank == 0 else _answer
        _agreed[m.job] = agree(store, m, meeting.Waiting(m, timeout))
    return dist.PrefixStore(f"start/{_agreed[m.job]}", store)


def _read_out(store: Any, m: Membership, waiting: meeting.Waiting) -> str:
    """Rank 0: publish everyone's word until all have answered to the same list."""
    own, number, words = uuid.uuid4().hex, 0, {0: ""}
    store.set("hello/0", own)
    while True:
        found = {rank: store.get(f"hello/{rank}").decode() for rank in range(m.size) if _has(store, rank)}
        if len(found) == m.size and found != words:
            number, words = number + 1, found
            named = {"start": f"{own}.{number}", "words": [words[rank] for rank in range(m.size)]}
            store.set("named", json.dumps(named))
        late = [rank for rank in range(1, m.size) if not store.check([_answered(f"{own}.{number}", rank)])]
        if not late:
            store.set(f"settled/{own}.{number}", "1")
            return f"{own}.{number}"
        waiting.on([rank for rank in late if not _has(store, rank)] or late)


def _answer(store: Any, m: Membership, waiting: meeting.Waiting) -> str:
    """Another rank: answer to each list with the own word, until one is settled."""
    own, start = uuid.uuid4().hex, ""
    store.set(f"hello/{m.rank}", own)
    while True:
        if store.check(["named"]):
            named = json.loads(store.get("named").decode())
            if named["words"][m.rank : m.rank + 1] == [own] and named["start"] != start:
                start = named["start"]
                store.set(_answered(start, m.rank), "1")
        if start and store.check([f"settled/{start}"]):
            return start
        late = [rank for rank in range(m.size) if not _has(store, rank)]
        if not late and start:
            late = [rank for rank in range(1, m.size) if not store.check([_answered(start, rank)])]
        waiting.on(late or [0])


def _has(store: Any, rank: int) -> bool:
    return bool(store.check([f"hello/{rank}"]))


def _answered(start: str, rank: int) -> str:
    return f"answered/{start}/{rank}"
