"""A generated recommender log of any size: who saw which item, and clicked, favourited or bought it.

- Users and items have Zipf popularity; context is hour, weekday and device; users have an age group, items
  a category and a price.
- The truth is a planted factorisation machine (Rendle 2010): the logit is a bias, one weight per value and
  the inner products of pairs of value vectors. A click is drawn from it; favourites and purchases are drawn
  among clicks, each from a logit of its own.
- So the true probability of every label is known, and with it the best AUC that any model can be expected
  to reach on the test rows.
- Row i depends on the seed and on i alone: a longer log begins with the shorter one. It is made in chunks, so
  the size on disk is not bounded by memory.

Taught in lesson 04; used wherever a larger data set than flights is wanted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dtlab.data.columns import mix, near
from dtlab.data.features import FeatureSpec
from dtlab.data.shards import ShardWriter
from dtlab.errors import UserError

GENERATOR = 1  # raise it when a change here changes the generated rows
LABELS = ("click", "favourite", "purchase")
CHUNK = 131_072
_LEAST_BYTES = 16  # of a row on the disk; a log of some size has about 20

NUM_USERS, NUM_ITEMS, NUM_CATEGORIES, NUM_AGES = 20_000, 5_000, 24, 7
DEVICES = ("desktop", "phone", "tablet", "tv")
DIM = 4
FIELDS = {
    "user": NUM_USERS, "item": NUM_ITEMS, "category": NUM_CATEGORIES, "age": NUM_AGES,
    "hour": 24, "weekday": 7, "device": len(DEVICES),
}  # fmt: skip
# How much each field's own weight and its vector matter: users and items a little, the small fields much, so
# that a model can come near the best AUC with a million rows.
WEIGHT = {"user": 0.5, "item": 0.7, "category": 0.4, "age": 0.2, "hour": 0.3, "weekday": 0.1, "device": 0.3}
VECTOR = {"user": 0.35, "item": 0.35, "category": 0.6, "age": 0.6, "hour": 0.4, "weekday": 0.2, "device": 0.4}
BIAS = {"click": -1.6, "favourite": -1.5, "purchase": -2.0}


@dataclass(frozen=True)
class Truth:
    """The planted machine of one seed: per label and field, weights [N] and vectors [N, DIM]; and the
    items' facts."""

    weights: dict[str, dict[str, np.ndarray]]
    vectors: dict[str, dict[str, np.ndarray]]
    price_slope: dict[str, float]
    item_category: np.ndarray
    item_price: np.ndarray
    user_age: np.ndarray
    item_shuffle: np.ndarray
    user_shuffle: np.ndarray

    @classmethod
    def plant(cls, seed: int) -> Truth:
        """Draw the machine of a seed."""
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0])))
        weights: dict[str, dict[str, np.ndarray]] = {}
        vectors: dict[str, dict[str, np.ndarray]] = {}
        for label in LABELS:
            weights[label] = {
                n: (WEIGHT[n] * rng.standard_normal(size)).astype(np.float32) for n, size in FIELDS.items()
            }
            vectors[label] = {
                n: (VECTOR[n] * rng.standard_normal((size, DIM))).astype(np.float32)
                for n, size in FIELDS.items()
            }
        return cls(
            weights,
            vectors,
            {"click": -0.2, "favourite": 0.1, "purchase": -0.5},
            rng.integers(0, NUM_CATEGORIES, NUM_ITEMS),
            np.exp(rng.normal(3.0, 0.8, NUM_ITEMS)).round(2).astype(np.float32),
            rng.integers(0, NUM_AGES, NUM_USERS),
            rng.permutation(NUM_ITEMS),
            rng.permutation(NUM_USERS),
        )

    def logits(self, label: str, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Logit [B] of ``label`` (for favourite and purchase: given a click)."""
        total = np.full(len(rows["user"]), BIAS[label], dtype=np.float32)
        summed = np.zeros((len(total), DIM), dtype=np.float32)
        squares = np.zeros(len(total), dtype=np.float32)
        for name in FIELDS:
            total += self.weights[label][name][rows[name]]
            vectors = self.vectors[label][name]
            summed += vectors[rows[name]]
            squares += np.square(vectors).sum(axis=1)[rows[name]]
        total += self.price_slope[label] * (np.log(self.item_price[rows["item"]]) - 3.0)
        # The sum over pairs of <v_i, v_j> is (|sum of v|^2 - sum of |v|^2) / 2: Rendle (2010), equation 5.
        return total + 0.5 * (np.square(summed).sum(axis=1) - squares)


@dataclass(frozen=True)
class Chunk:
    """Rows ``first`` to ``first + B`` of the log, and the true probability [B] of each label."""

    table: pa.Table
    probabilities: dict[str, np.ndarray]
    split: np.ndarray  # [B] 0 train, 1 validation, 2 test


def generate(rows: int, seed: int = 0) -> Iterator[Chunk]:
    """Chunks of the log of a seed, ``rows`` rows together.

    >>> chunk = next(generate(5, seed=1))
    >>> chunk.table.num_rows, sorted(chunk.probabilities)
    (5, ['click', 'favourite', 'purchase'])
    """
    if rows < 1:
        raise UserError(f"data.rows = {rows}: must be at least 1")
    truth = Truth.plant(seed)
    popular_items, popular_users = _zipf(NUM_ITEMS, 1.0), _zipf(NUM_USERS, 0.6)
    for number, first in enumerate(range(0, rows, CHUNK)):
        # Always a whole chunk of random numbers, so that row i does not depend on ``rows``.
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1, number])))
        item = truth.item_shuffle[np.searchsorted(popular_items, rng.random(CHUNK))]
        user = truth.user_shuffle[np.searchsorted(popular_users, rng.random(CHUNK))]
        drawn = {
            "user": user,
            "item": item,
            "category": truth.item_category[item],
            "age": truth.user_age[user],
            "hour": np.clip(rng.normal(15, 5, CHUNK), 0, 23).astype(np.int64),
            "weekday": rng.integers(0, 7, CHUNK),
            "device": np.searchsorted([0.35, 0.9, 0.97], rng.random(CHUNK)),
        }
        dice = rng.random((len(LABELS), CHUNK))
        kept = slice(0, min(CHUNK, rows - first))
        drawn = {name: values[kept] for name, values in drawn.items()}
        yield _chunk(truth, first, drawn, dice[:, kept])


def _chunk(truth: Truth, first: int, drawn: dict[str, np.ndarray], dice: np.ndarray) -> Chunk:
    given = {label: 1 / (1 + np.exp(-truth.logits(label, drawn).astype(np.float64))) for label in LABELS}
    click = dice[0] < given["click"]
    ids = first + np.arange(len(click), dtype=np.int64)
    table = pa.table(
        {
            "id": ids,
            "user": pa.array(drawn["user"].astype(np.int32)),
            "item": pa.array(drawn["item"].astype(np.int32)),
            "category": pa.array(drawn["category"].astype(np.int8)),
            "price": truth.item_price[drawn["item"]],
            "age": pa.array(drawn["age"].astype(np.int8)),
            "hour": pa.array(drawn["hour"].astype(np.int8)),
            "weekday": pa.array(drawn["weekday"].astype(np.int8)),
            "device": pa.DictionaryArray.from_arrays(pa.array(drawn["device"].astype(np.int8)), DEVICES),
            "click": pa.array(click.astype(np.int8)),
            "favourite": pa.array((click & (dice[1] < given["favourite"])).astype(np.int8)),
            "purchase": pa.array((click & (dice[2] < given["purchase"])).astype(np.int8)),
        }
    )
    probabilities = {
        "click": given["click"],
        "favourite": given["click"] * given["favourite"],
        "purchase": given["click"] * given["purchase"],
    }
    share = mix(ids.astype(np.uint64) + np.uint64(1)) % np.uint64(10)
    split = np.where(share == 9, 2, np.where(share == 8, 1, 0))
    return Chunk(table, probabilities, split)


def _zipf(size: int, exponent: float) -> np.ndarray:
    """Cumulative probabilities of ranks 1..size, each proportional to rank ** -exponent."""
    cumulative = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -exponent)
    cumulative /= cumulative[-1]
    cumulative[-1] = 1.0
    return cumulative


class AucOfTruth:
    """AUC of the true probabilities, in constant memory: counts over fine bins of the logit.

    Over the test rows a model cannot be expected to order clicks and non-clicks better than this.
    """

    BINS = 1 << 16

    def __init__(self) -> None:
        self.positive = np.zeros(self.BINS, dtype=np.int64)
        self.negative = np.zeros(self.BINS, dtype=np.int64)

    def add(self, probability: np.ndarray, label: np.ndarray) -> None:
        """Count rows: probability [B] and label [B] of 0 and 1."""
        tiny = 1e-12
        logit = np.log(np.maximum(probability, tiny)) - np.log(np.maximum(1 - probability, tiny))
        place = np.clip((logit + 16) / 32 * self.BINS, 0, self.BINS - 1).astype(np.int64)
        self.positive += np.bincount(place[label == 1], minlength=self.BINS)
        self.negative += np.bincount(place[label == 0], minlength=self.BINS)

    def value(self) -> float | None:
        """The AUC (Mann-Whitney, ties count half), or None with only one kind of label."""
        positives, negatives = int(self.positive.sum()), int(self.negative.sum())
        if positives == 0 or negatives == 0:
            return None
        below = np.cumsum(self.negative) - self.negative
        return float((self.positive * (below + 0.5 * self.negative)).sum() / (positives * negatives))


def spec(label: str | None = None) -> FeatureSpec:
    """The features for a label: click (default), favourite or purchase."""
    label = label or "click"
    if label not in LABELS:
        raise UserError(f"data.label = {label!r}: clicks has {', '.join(LABELS)}{near(label, list(LABELS))}")
    return FeatureSpec(
        categorical=("user", "item", "category", "age", "hour", "weekday", "device"),
        numeric=("price",),
        label=label,
        id="id",
    )


def source_key(rows: int, seed: int) -> str:
    """Names the log: everything its rows depend on."""
    return f"{GENERATOR}-{rows}-{seed}"


def build(folder: Path, rows: int, seed: int) -> dict[str, Any]:
    """Write the three splits (8 : 1 : 1 by a hash of the row number) as shards; for ``prepare``."""
    free = shutil.disk_usage(folder).free
    if rows * _LEAST_BYTES > free:
        raise UserError(
            f"data.rows = {rows}: needs {rows * _LEAST_BYTES / 1e9:,.4f} GB or more, and data.root has "
            f"{free / 1e9:,.4f} GB free; take fewer rows, or another data.root"
        )
    best = {label: AucOfTruth() for label in LABELS}
    writers = [ShardWriter(folder, split) for split in ("train", "validation", "test")]
    for chunk in generate(rows, seed):
        for number, writer in enumerate(writers):
            chosen = chunk.split == number
            writer.write(chunk.table.filter(pa.array(chosen)))
        for label in LABELS:
            known = chunk.table.column(label).to_numpy()
            best[label].add(chunk.probabilities[label][chosen], known[chosen])  # ``chosen`` is the test here
    for writer in writers:
        writer.close()
    return {
        "rows": {writer.split: writer.rows for writer in writers},
        "best_auc": {label: counts.value() for label, counts in best.items()},
    }
