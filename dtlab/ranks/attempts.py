"""Which start of a run is this? The ranks of several hosts agree on it before they meet (lesson 13).

After a failure torchrun starts the ranks of all hosts anew, in the store of before, and tells each a counter
of restarts: that of its own host. Hosts whose ranks did not fail first count one less
(pytorch/pytorch#108158), so the counter names no start, and the store still holds what the ranks of the last
one wrote. So every process writes a word that nobody has written before, rank 0 reads them out, and all
answer to the list that holds their own.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from dtlab.errors import UserError
from dtlab.ranks.membership import Membership

__all__ = ["of_this_start"]

_agreed: dict[str, str] = {}
_PAUSE = 0.01


def of_this_start(store: Any, m: Membership, timeout: float) -> Any:
    """``store`` with a prefix that the ranks of this start share and no earlier one had.

    A process lives for one start, so it agrees once. Where one launcher starts all ranks there is nothing to
    agree on, and the store is given back as it is.

    Raises:
        UserError: ranks did not come within ``timeout`` seconds; they are named.
    """
    if not m.counts_apart:
        return store
    import torch.distributed as dist

    if m.job not in _agreed:
        deadline = time.monotonic() + timeout
        _agreed[m.job] = _read_out(store, m, deadline) if m.rank == 0 else _answer(store, m, deadline)
    return dist.PrefixStore(f"start/{_agreed[m.job]}", store)


def _read_out(store: Any, m: Membership, deadline: float) -> str:
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
        _wait(m, late, deadline)


def _answer(store: Any, m: Membership, deadline: float) -> str:
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
        late = [0] if not start else [r for r in range(m.size) if not store.check([_answered(start, r)])]
        _wait(m, late, deadline)


def _has(store: Any, rank: int) -> bool:
    return bool(store.check([f"hello/{rank}"]))


def _answered(start: str, rank: int) -> str:
    return f"answered/{start}/{rank}"


def _wait(m: Membership, late: list[int], deadline: float) -> None:
    if time.monotonic() > deadline:
        raise UserError(
            f"missing rank {', '.join(map(str, late[:10]))} of {m.size}: it did not join in time. Fix: look "
            "at the output of its host; for slow ranks: join_timeout=SECONDS"
        )
    time.sleep(_PAUSE)
