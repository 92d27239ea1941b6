"""The links of each machine of the catalogue: cards among themselves, and machines over the network.

- `data/links.csv` holds what was measured: latency and bandwidth of all-reduces, by number of machines, with
  the source. `kind` says "measured" or "estimate"; nothing else is called measured.
- Everything else is a rule, marked "estimate":

  - cards on NVLink: 0.85 of one direction; on PCIe by generation: 6, 12 and 25 GB/s, because the data passes
    through the host;
  - N machines: the network's share of the wire, 0.96 with EFA and 0.6 without, in a hierarchical all-reduce:
    ``B = share * wire * k(n)/k(N)``, never more than the cards' own link, k = 2(n-1)/n of all ranks and of
    the machines. 0.96 is what 16 p5en reached (409 GB/s of 400 * 1.98/1.875); 0.6 rests on no measurement.
  - latency grows by the same step with each doubling of the machines, as a tree does.

Two machines can show more than the wire: in a tree or a hierarchical all-reduce each sends S once.
"""

import csv
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache, lru_cache
from math import log2
from pathlib import Path

from dtlab.cost.catalogue import Instance, instance
from dtlab.cost.collective_time import Kind, Link, sent_share
from dtlab.errors import UserError

LINKS = Path(__file__).parent / "data" / "links.csv"

_NVLINK_SHARE, _EFA_SHARE, _ETHERNET_SHARE = 0.85, 0.96, 0.6
_NVLINK_ALPHA, _PCIE_ALPHA, _EFA_ALPHA, _ETHERNET_ALPHA = 20e-6, 50e-6, 70e-6, 150e-6
# Without NVLink the cards talk through the host: bytes a second in an all-reduce, by generation of PCIe.
_PCIE = {"T4": 6e9, "A10G": 12e9, "L4": 12e9, "L40S": 12e9, "RTX PRO Server 6000": 25e9}
# Which measured rows of `links.csv` stand for the cards of a machine, and for its network.
_INSIDE = {"H100": "8xH100 NVSwitch", "H200": "8xH200 NVSwitch", "A100": "8xA100 NVSwitch"}
_ACROSS = {
    "p5.48xlarge": "p5 EFA", "p5e.48xlarge": "p5 EFA", "p5en.48xlarge": "p5 EFA", "p4de.24xlarge": "p4de EFA",
    "p4d.24xlarge": "p4de EFA", "p3dn.24xlarge": "p3dn EFA",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Network:
    """What collectives among the cards of one kind of machine, and among machines, were found to take.

    - `cards`: cards of a machine; `inside`: their link, None with a single card;
    - `wire_bytes_per_second`: what the machine's adapters send; `has_efa`;
    - `measured`: links by number of machines, fewest first.
    """

    name: str
    cards: int
    inside: Link | None
    wire_bytes_per_second: float
    has_efa: bool = False
    measured: tuple[tuple[int, Link], ...] = ()

    def link(self, ranks: int, nodes: int = 1) -> Link:
        """The link for a collective over `ranks` on `nodes` machines, cards of each used evenly.

        - Between two measured numbers of machines both figures are interpolated in log2 of the machines;
          beyond the last the rule's trend goes on from it. What is not measured itself is an "estimate".

        >>> found = network("ml.p5.48xlarge").link(16, nodes=2)
        >>> found.kind, round(found.seconds("all_reduce", 16, 2**30) * 1e3, 1)
        ('measured', 4.9)

        Raises:
            UserError: more ranks than cards, or fewer ranks than machines.
        """
        if nodes < 1 or ranks < nodes or ranks > nodes * max(1, self.cards):
            raise UserError(
                f"ranks = {ranks} on {nodes} x {self.name}: give {nodes} to {nodes * max(1, self.cards)}"
            )
        return _link(self, ranks, nodes)

    def seconds(self, collective: str, ranks: int, num_bytes: float, nodes: int = 1) -> float:
        """Seconds of one collective; see `link` and `Link.seconds`.

        >>> round(network("g5.12xlarge").seconds("all_reduce", 4, 1.28e9), 3)  # over PCIe, an estimate
        0.166
        """
        if ranks == 1:
            return 0.0
        return self.link(ranks, nodes).seconds(collective, ranks, num_bytes)


@lru_cache(maxsize=4096)
def _link(network: Network, ranks: int, nodes: int) -> Link:
    if nodes == 1:
        if network.inside is None:
            return Link(alpha_seconds=0.0, bytes_per_second=float("inf"), source="one rank")
        return network.inside
    rule = _rule(network, ranks, nodes)
    known = [count for count, _ in network.measured]
    if not known:
        return rule
    at = bisect_left(known, nodes)
    if at < len(known) and known[at] == nodes:
        return network.measured[at][1]
    low = network.measured[at - 1] if at else None
    if at == len(known):  # beyond the last: its figures, moved as the rule moves
        count, link = network.measured[-1]
        base = _rule(network, max(2, ranks * count // nodes), count)
        alpha = link.alpha_seconds * rule.alpha_seconds / base.alpha_seconds
        speed = link.bytes_per_second * rule.bytes_per_second / base.bytes_per_second
        return _estimate(alpha, speed, f"{link.source}; from {count} machines by the rule")
    high = network.measured[at]
    if low is None:
        return _estimate(high[1].alpha_seconds, high[1].bytes_per_second, high[1].source)
    share = log2(nodes / low[0]) / log2(high[0] / low[0])
    alpha = low[1].alpha_seconds + share * (high[1].alpha_seconds - low[1].alpha_seconds)
    speed = low[1].bytes_per_second * (high[1].bytes_per_second / low[1].bytes_per_second) ** share
    return _estimate(alpha, speed, f"between {low[0]} and {high[0]} machines: {high[1].source}")


def _rule(network: Network, ranks: int, nodes: int) -> Link:
    share, alpha = (_EFA_SHARE, _EFA_ALPHA) if network.has_efa else (_ETHERNET_SHARE, _ETHERNET_ALPHA)
    speed = share * network.wire_bytes_per_second
    speed *= sent_share("all_reduce", ranks) / sent_share("all_reduce", nodes)
    if network.inside is not None and ranks > nodes:
        speed = min(speed, network.inside.bytes_per_second)
    return _estimate(alpha * log2(2 * nodes) / 2, speed, "rule from the adapters' speed")


def _estimate(alpha_seconds: float, bytes_per_second: float, source: str) -> Link:
    return Link(alpha_seconds=alpha_seconds, bytes_per_second=bytes_per_second, source=source)


@cache
def network(name: str) -> Network:
    """The network of a type of the catalogue, with or without "ml.", or of a named cluster of `links.csv`.

    >>> network("ml.g4dn.12xlarge").inside.kind, network("p5.48xlarge").inside.kind
    ('estimate', 'measured')
    >>> network("HF H100 cluster").link(128, 16).bytes_per_second / 1e9
    84.7

    Raises:
        UserError: an unknown type; one without a GPU.
    """
    if str(name).strip().lower() == "hf h100 cluster":
        rows = _measured("HF H100 cluster")
        return Network(
            name="HF H100 cluster", cards=8, inside=dict(rows)[1], wire_bytes_per_second=400e9, has_efa=True,
            measured=tuple(row for row in rows if row[0] > 1),
        )  # fmt: skip
    return network_of(instance(name))


def network_of(found: Instance) -> Network:
    """The network of an `Instance`; see `network`."""
    if not found.gpus:
        raise UserError(f"instance = {found.name!r} has no GPU: name a type with cards, see dtlab instances")
    across = _ACROSS.get(found.name)
    return Network(
        name=found.sagemaker_name if found.on_sagemaker else found.name,
        cards=found.gpus,
        inside=_inside(found) if found.gpus > 1 else None,
        wire_bytes_per_second=(found.network_gbps or 10.0) * 1e9 / 8,
        has_efa=found.efa,
        measured=_measured(across) if across else (),
    )


def _inside(found: Instance) -> Link:
    rows = dict(_measured(_INSIDE.get(found.gpu, "")))
    if 1 in rows and found.gpus == 8:
        return rows[1]
    speed = found.interconnect_gb_per_second
    if speed:
        return _estimate(_NVLINK_ALPHA, _NVLINK_SHARE * speed / 2 * 1e9, f"rule from {found.interconnect}")
    if found.gpu in _PCIE:
        return _estimate(_PCIE_ALPHA, _PCIE[found.gpu], "rule for cards on PCIe")
    return _estimate(_PCIE_ALPHA, 12e9, f"no figure for {found.interconnect}: taken as PCIe 4")


@cache
def _measured(name: str) -> tuple[tuple[int, Link], ...]:
    with LINKS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["network"] == name]
    return tuple(sorted((int(row["nodes"]), _from_row(row)) for row in rows))


def _from_row(row: dict[str, str]) -> Link:
    kind: Kind = "measured" if row["kind"] == "measured" else "estimate"
    return Link(
        alpha_seconds=float(row["alpha_us"]) * 1e-6,
        bytes_per_second=float(row["gb_per_second"]) * 1e9,
        kind=kind,
        source=row["source"],
    )
