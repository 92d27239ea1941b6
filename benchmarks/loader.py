"""How fast are batches of flights made, and how long does a training step wait for them?

Compared with what a user would write first: ``DataLoader(TensorDataset(...), shuffle=True)``, in the same
process, on the same columns and with the same batch size. Run ``python -m benchmarks.loader [--json]``.
"""

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import Figure, paired_medians, report, say
from dtlab.data.batch import Batch
from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset
from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.models.deepfm import DeepFM

BATCH = 4096
REPEATS = 5
PLAIN_BATCHES = 16
STEPS = 20


def seconds_per_row(batches: Iterable[Any], most: int | None = None) -> float:
    """Seconds per row of an epoch, or of its first ``most`` batches; nothing is done with the batches."""
    rows, started = 0, time.perf_counter()
    for batch in itertools.islice(batches, most):
        rows += len(batch[0]) if isinstance(batch, list) else len(batch)
    return (time.perf_counter() - started) / rows


def by_hand(table: Batch) -> Iterator[list[Tensor]]:
    """The shortest loop by hand: permute the row numbers, then index each column per batch."""
    order = torch.randperm(len(table))
    for start in range(0, len(table), BATCH):
        rows = order[start : start + BATCH]
        yield [column[rows] for column in table.columns().values()]


def wait_share(table: Batch, cardinalities: tuple[int, ...], num_dense: int, *, prefetch: int) -> float:
    """Share of the time of DeepFM training steps that is spent waiting for data."""
    torch.manual_seed(0)
    model = DeepFM(cardinalities, num_dense)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = Loader(table, GlobalBatchSampler(len(table), BATCH), prefetch=prefetch)
    for step, batch in enumerate(loader):
        if step == 3:  # the first steps allocate
            loader.wait_seconds, started = 0.0, time.perf_counter()
        assert batch.labels is not None
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(batch.categorical, batch.dense), batch.labels).backward()
        optimizer.step()
        if step == 2 + STEPS:
            break
    return loader.wait_seconds / (time.perf_counter() - started)


def main() -> None:
    """Measure and report."""
    say("loading flights ...")
    dataset = load_dataset(DataConfig(name="flights"))
    table = dataset.train
    plain = DataLoader(TensorDataset(*table.columns().values()), batch_size=BATCH, shuffle=True)
    ours = Loader(table, GlobalBatchSampler(len(table), BATCH), prefetch=0)
    ahead = Loader(table, GlobalBatchSampler(len(table), BATCH), prefetch=2)
    say("batches of the DataLoader and of the Loader, in turn ...")
    default_threads = torch.get_num_threads()
    *_, with_default_threads = paired_medians(
        lambda: seconds_per_row(plain, PLAIN_BATCHES), lambda: seconds_per_row(ours), REPEATS
    )
    torch.set_num_threads(1)  # as on a rank that shares two cores with another
    plain_row, our_row, ratio = paired_medians(
        lambda: seconds_per_row(plain, PLAIN_BATCHES), lambda: seconds_per_row(ours), REPEATS
    )
    hand_row, _, over_by_hand = paired_medians(
        lambda: seconds_per_row(by_hand(table)), lambda: seconds_per_row(ours), REPEATS
    )
    ahead_row = statistics.median(seconds_per_row(ahead) for _ in range(REPEATS))
    say("DeepFM training steps ...")
    shares = {
        prefetch: statistics.median(
            wait_share(table, dataset.cardinalities, dataset.num_dense, prefetch=prefetch)
            for _ in range(REPEATS)
        )
        for prefetch in (0, 2)
    }
    figures: dict[str, Figure] = {
        "rows_over_dataloader": ratio,
        "rows_over_dataloader_default_threads": with_default_threads,
        "wait_share": shares[0],
        "wait_share_prefetch_2": shares[2],
        "rows_over_by_hand": over_by_hand,
        "rows_per_second": 1 / our_row,
        "rows_per_second_prefetch_2": 1 / ahead_row,
        "rows_per_second_dataloader": 1 / plain_row,
        "rows_per_second_by_hand": 1 / hand_row,
    }
    row_bytes = sum(c.numel() * c.element_size() for c in table.columns().values()) // len(table)
    notes = [
        f"{len(table)} rows of {row_bytes} bytes, batch {BATCH}, one process, one thread",
        f"  (rows_over_dataloader_default_threads: {default_threads}, which other work on the cores slows)",
        f"rows_over_dataloader: an epoch of Loader(prefetch=0) over the first {PLAIN_BATCHES} batches of",
        "  DataLoader(TensorDataset, shuffle=True), in rows/s; target >= 15",
        f"wait_share: of {STEPS} DeepFM + AdamW steps, prefetch=0 as the trainer's default; target < 0.03",
        "rows_over_by_hand: over a loop that indexes each column with a permutation, batch by batch",
    ]
    report("Loader against DataLoader", figures, notes)


if __name__ == "__main__":
    main()
