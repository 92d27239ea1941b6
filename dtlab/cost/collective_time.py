"""Seconds of a collective by two fitted numbers: latency and bandwidth of a link (lesson 02).

A collective of S bytes takes ``(sqrt(alpha) + sqrt(k * S / B))**2`` seconds: `alpha` is the time of an empty
one, `k * S` the bytes that each rank sends. A pipelined ring that cuts S into C chunks costs
``alpha * (1 + C) + k*S/B * (1 + 1/C)`` up to constants; the best C leaves the square above.

==============================  ==============  ==================================
collective                      k, n ranks      S
==============================  ==============  ==================================
all_reduce                      2 (n-1) / n     bytes of the tensor
all_gather                      (n-1) / n       bytes of the gathered tensor
reduce_scatter                  (n-1) / n       bytes before the scatter
all_to_all                      (n-1) / n       bytes that a rank holds, its own part too
p2p                             1               bytes of the message
==============================  ==============  ==================================

- `collectives` has the textbook formulas, whose error over 1 MiB to 1 GiB is several times larger.
- B is an asymptote: it can exceed the wire (in-network sums, trees on two nodes) and is no hardware figure.
- k as in nccl-tests, doc/PERFORMANCE.md ("bus bandwidth").
"""

from dataclasses import dataclass
from math import sqrt
from typing import Literal

from dtlab.errors import UserError

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]
COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
Kind = Literal["measured", "estimate"]


def sent_share(collective: str, ranks: int) -> float:
    """k of the table: bytes that each rank sends, as a multiple of S.

    >>> sent_share("all_reduce", 8), sent_share("all_gather", 8), sent_share("p2p", 2)
    (1.75, 0.875, 1.0)

    Raises:
        UserError: an unknown collective, or no whole number of ranks.
    """
    if collective not in COLLECTIVES:
        raise UserError(f"collective = {collective!r}: choose from {', '.join(COLLECTIVES)}")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UserError(f"ranks = {ranks!r}: give a whole number of 1 or more")
    if collective == "p2p":
        return 1.0 if ranks > 1 else 0.0
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


@dataclass(frozen=True, kw_only=True)
class Link:
    """Latency and bandwidth that collectives among some ranks were found to have.

    - `alpha_seconds`: time of an empty collective; `bytes_per_second`: the asymptote B, per rank.
    - `kind`: "measured" when fitted on measurements of this network, else "estimate"; `source` says which.

    >>> h100 = Link(alpha_seconds=14.6e-6, bytes_per_second=529e9)
    >>> f"{h100.seconds('all_reduce', 8, 2**26) * 1e6:.0f} us"
    '350 us'
    """

    alpha_seconds: float
    bytes_per_second: float
    kind: Kind = "estimate"
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha_seconds < float("inf"):
            raise UserError(f"alpha_seconds = {self.alpha_seconds!r}: give seconds, 0 or more")
        if not self.bytes_per_second > 0:
            raise UserError(f"bytes_per_second = {self.bytes_per_second!r}: give a bandwidth above 0")

    def seconds(self, collective: str, ranks: int, num_bytes: float) -> float:
        """Seconds of one collective over `ranks`; one rank needs none.

        The latency is that of the all-reduce for every collective: nothing measured the others when small.
        """
        if not 0 <= num_bytes < float("inf"):
            raise UserError(f"num_bytes = {num_bytes!r}: give bytes, 0 or more")
        share = sent_share(collective, ranks)
        if not share:
            return 0.0
        return (sqrt(self.alpha_seconds) + sqrt(share * num_bytes / self.bytes_per_second)) ** 2

    def bus_bandwidth(self, collective: str, ranks: int, num_bytes: float) -> float:
        """Bytes a second as nccl-tests print it ("busbw"): ``k S / seconds``; 0 for one rank."""
        seconds = self.seconds(collective, ranks, num_bytes)
        return sent_share(collective, ranks) * num_bytes / seconds if seconds else 0.0


def hierarchical_all_reduce_seconds(
    num_bytes: float, local_ranks: int, nodes: int, inside: Link, across: Link
) -> float:
    """Reduce-scatter in each node, all-reduce of S/g among the nodes, all-gather in each: one after another.

    - `local_ranks`: g, ranks on a node; `inside`: their link.
    - `across`: what ONE rank has of the network: its share of the node's adapters when g rings run at once.

    >>> inside = Link(alpha_seconds=0, bytes_per_second=400e9)
    >>> across = Link(alpha_seconds=0, bytes_per_second=6.25e9)  # 400 Gbit/s shared by 8
    >>> round(hierarchical_all_reduce_seconds(1e9, 8, 2, inside, across), 4)  # 2*0.0022 + 0.02
    0.0244
    """
    return (
        inside.seconds("reduce_scatter", local_ranks, num_bytes)
        + across.seconds("all_reduce", nodes, num_bytes / local_ranks)
        + inside.seconds("all_gather", local_ranks, num_bytes)
    )
