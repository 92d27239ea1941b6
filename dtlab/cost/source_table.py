"""The cost table of the course's source S0, as claimed and as recomputed from the price list (lesson 14).

The author writes $0.47, $0.28 and $0.35 "per sample" for 1, 4 and 8 cards. What a price list can say is
dollars per epoch: minutes x price. Two things changed between his first and second row, the disk and the
number of cards; `split` takes them apart.
"""

from dataclasses import dataclass

from dtlab.cost.billing import cost


@dataclass(frozen=True)
class ClaimedRow:
    """One row as the source prints it; `communication` is the share of the step, None where not given."""

    setup: str
    gpus: int
    minutes: float
    usd: float
    communication: float | None
    instance: str


S0_ROWS = (
    ClaimedRow("1 card, read from disk", 1, 142, 0.47, None, "p3.2xlarge"),
    ClaimedRow("4 cards, cached in memory", 4, 31, 0.28, 0.12, "p3.8xlarge"),
    ClaimedRow("8 cards, NVMe cache", 8, 18, 0.35, 0.22, "p3.16xlarge"),
)


@dataclass(frozen=True)
class RecomputedRow:
    """A row beside the price list: dollars of one epoch, and each figure relative to the first row."""

    claimed: ClaimedRow
    usd_per_epoch: float
    claimed_ratio: float
    ratio: float
    epoch_samples_if_per_thousand: float


def s0_table(kind: str = "sagemaker") -> list[RecomputedRow]:
    """The three rows recomputed: "sagemaker" or "ec2" prices of the V100 types, both of the past.

    `epoch_samples_if_per_thousand`: samples that an epoch would need if "per sample" meant "per 1,000". They
    differ from row to row, so that reading cannot be right either.

    >>> [round(row.usd_per_epoch, 2) for row in s0_table()]
    [9.05, 7.59, 8.45]
    >>> [round(row.ratio, 2) for row in s0_table()], [round(row.claimed_ratio, 2) for row in s0_table()]
    ([1.0, 0.84, 0.93], [1.0, 0.6, 0.74])
    """
    usd = [cost(row.instance, 60 * row.minutes, kind=kind).usd for row in S0_ROWS]  # type: ignore[arg-type]
    first = S0_ROWS[0]
    return [
        RecomputedRow(row, epoch, row.usd / first.usd, epoch / usd[0], 1000 * epoch / row.usd)
        for row, epoch in zip(S0_ROWS, usd, strict=True)
    ]


@dataclass(frozen=True)
class Split:
    """142 minutes to 18: what the cache did, and what seven more cards did.

    `one_card_minutes`: computing alone on one card, as the 4-card row implies. `cache` and `cards` multiply
    to the whole.
    """

    one_card_minutes: float
    stalled_minutes: float
    cache: float
    cards: float
    efficiency: float


def split() -> Split:
    """The two factors behind "7.8 times faster".

    4 cards for 31 minutes, 12 % of them communication, are `31 x 0.88 x 4` = 109 minutes of computing on one.

    >>> found = split()
    >>> round(found.one_card_minutes), [round(x, 2) for x in (found.cache, found.cards, found.efficiency)]
    (109, [1.3, 6.06, 0.76])
    """
    one, four, eight = S0_ROWS
    alone = four.minutes * (1 - (four.communication or 0)) * four.gpus
    cards = alone / eight.minutes
    return Split(alone, one.minutes - alone, one.minutes / alone, cards, cards / eight.gpus)
