"""How fast is a table read from Parquet, and when do loader workers pay?

The same rows from memory, from a stream with and without a thread, with worker processes, and from a disk
cache; then training steps that wait for them, beside what ``expected_step_seconds`` foretells for each way.
The second part runs twice: with the features of clicks, which one reader makes faster than a step, and with
features that cost a Python loop over the rows, which it does not.

Read off ``*_measured_over_foretold_*``: 1 where the formula holds. It takes every reader to have a core of
its own, so run it on an idle machine. Run ``python -m benchmarks.stream [--json]``.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import Figure, report, say
from dtlab.data import clicks
from dtlab.data.batch import Batch
from dtlab.data.cache import Cache
from dtlab.data.config import DataConfig
from dtlab.data.features import Features
from dtlab.data.loader import Loader
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.prepare import prepare
from dtlab.data.row_group_reader import RowGroupReader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.shards import shard_paths
from dtlab.data.stream_loader import StreamLoader
from dtlab.data.workers import WorkerAdvice, expected_step_seconds, recommend_workers, usable_cores
from dtlab.models.deepfm import DeepFM

ROWS = 600_000
BATCH = 4096
REPEATS = 5
STEPS = 30


class SlowFeatures(ParquetStream):
    """A stream whose features take a Python loop over the rows, as home-made ones do."""

    python_seconds = 0.0

    def _transformed(self, table: Any, rows: Any) -> Batch:
        started = time.perf_counter()
        for value in table.column(0).to_pylist():
            for _ in range(25):
                hash(str(value))
        self.python_seconds += time.perf_counter() - started
        self.transform_seconds += time.perf_counter() - started
        return super()._transformed(table, rows)


def rows_per_second(batches: Iterable[Batch]) -> tuple[float, float]:
    """(rows per second after the first batch, seconds until the first) of an epoch."""
    started = first = time.perf_counter()
    rows = 0
    for number, batch in enumerate(batches):
        if number == 0:
            first = time.perf_counter()
        else:
            rows += len(batch)
    return rows / (time.perf_counter() - first), first - started


def median_rate(make: Callable[[], Iterable[Batch]]) -> tuple[float, float]:
    """Medians of ``rows_per_second`` over some epochs."""
    rates, starts = zip(*(rows_per_second(make()) for _ in range(REPEATS)), strict=True)
    return statistics.median(rates), statistics.median(starts)


def queue_seconds(stream: ParquetStream) -> float:
    """Seconds that a consumer spends on a batch from a worker that is far ahead."""
    spent = []
    loader = StreamLoader(stream, num_workers=1, prefetch_factor=8)
    for number, _ in enumerate(loader):
        if number:
            spent.append(loader.wait_seconds)
        loader.wait_seconds = 0.0
        time.sleep(0.02)
    return statistics.median(spent)


class Steps:
    """DeepFM and AdamW, one thread: the other cores are the readers'."""

    def __init__(self, features: Features) -> None:
        torch.manual_seed(0)
        self.model = DeepFM(features.cardinalities, features.num_dense)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def __call__(self, batch: Batch) -> None:
        labels = batch.labels
        assert isinstance(labels, Tensor)
        self.optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(self.model(batch.categorical, batch.dense), labels).backward()
        self.optimizer.step()

    def seconds(self, batches: Iterable[Batch]) -> float:
        """Seconds of a step in the long run, waiting included; the first ones, which allocate, left out."""
        marks = []
        for number, batch in enumerate(batches):
            self(batch)
            marks.append(time.perf_counter())
            if number == 5 + STEPS:
                break
        return (marks[-1] - marks[5]) / (len(marks) - 6)


def training(
    kind: type[ParquetStream], make: Callable[..., ParquetStream]
) -> tuple[dict[str, Figure], WorkerAdvice]:
    """Measured and foretold milliseconds of a step: loop, thread, and as many workers as have a core."""
    source = make(kind)
    batches = list(StreamLoader(source, prefetch=0))
    reads = source.counts.decode_seconds / len(batches)
    makes = source.transform_seconds / len(batches)
    steps = Steps(source.features)
    step = min(steps.seconds(batches) for _ in range(REPEATS))
    ways: dict[str, dict[str, Any]] = {
        "loop": {"prefetch": 0},
        "thread": {"prefetch": 1},
        **{f"workers_{n}": {"num_workers": n} for n in (1, 2, 4) if n < usable_cores()},
    }
    measured = {
        name: min(steps.seconds(StreamLoader(make(kind), **options)) for _ in range(REPEATS))
        for name, options in ways.items()
    }
    times: dict[str, Any] = {
        "decode_seconds": reads,
        "transform_seconds": makes,
        "step_seconds": step,
        "python_seconds": getattr(source, "python_seconds", 0.0) / len(batches),
    }
    foretold = {name: expected_step_seconds(**times, **options) for name, options in ways.items()}
    batch_bytes = sum(c.numel() * c.element_size() for c in batches[0].columns().values())
    advice = recommend_workers(**times, batch_bytes=batch_bytes)
    figures: dict[str, Figure] = {"decode_ms": reads * 1e3, "features_ms": makes * 1e3, "step_ms": step * 1e3}
    figures |= {f"step_ms_{name}": seconds * 1e3 for name, seconds in measured.items()}
    figures |= {f"foretold_ms_{name}": seconds * 1e3 for name, seconds in foretold.items()}
    figures |= {f"measured_over_foretold_{name}": measured[name] / foretold[name] for name in ways}
    return figures | {"advised_workers": advice.num_workers}, advice


def main() -> None:
    """Measure and report."""
    say("preparing clicks ...")
    torch.set_num_threads(1)
    folder = DataConfig().folder / "clicks" / clicks.source_key(ROWS, 0)
    prepare(folder, lambda path: clicks.build(path, ROWS, 0))
    paths, spec = shard_paths(folder, "train"), clicks.spec(None)
    features = Features.fit(RowGroupReader(paths, spec.columns()).sample(100_000), spec)

    def make(kind: type[ParquetStream] = ParquetStream, **options: Any) -> ParquetStream:
        return kind(paths, features, BATCH, **options)

    table = Batch.concat(list(make(shuffle=False)))
    say("epochs without training ...")
    with tempfile.TemporaryDirectory() as place:
        ways: dict[str, Callable[[], Iterable[Batch]]] = {
            "memory": lambda: Loader(table, GlobalBatchSampler(len(table), BATCH), prefetch=0),
            "cache": lambda: StreamLoader(make(cache=Cache("disk", place)), prefetch=0),
            "stream": lambda: StreamLoader(make(), prefetch=0),
            "thread": lambda: StreamLoader(make(), prefetch=1),
            "worker": lambda: StreamLoader(make(), num_workers=1),
            "workers_2": lambda: StreamLoader(make(), num_workers=2),
            "forkserver": lambda: StreamLoader(make(), num_workers=1, worker_start_method="forkserver"),
        }
        rates = {name: median_rate(way) for name, way in ways.items()}
    half = make(rank=0, world_size=2)
    for _ in half:
        pass
    figures: dict[str, Figure] = {
        "stream_over_memory": rates["stream"][0] / rates["memory"][0],
        "cache_over_stream": rates["cache"][0] / rates["stream"][0],
        "decoded_over_taken_2_ranks": half.counts.rows_decoded / half.counts.rows_taken,
        "queue_ms": queue_seconds(make()) * 1e3,
        "start_ms_fork": rates["worker"][1] * 1e3,
        "start_ms_forkserver": rates["forkserver"][1] * 1e3,
        **{f"rows_per_second_{name}": rate for name, (rate, _) in rates.items() if name != "forkserver"},
    }
    notes = [
        f"{len(table)} rows of clicks in {len(paths)} files, batch {BATCH}, window 4, one rank, one torch "
        "thread",
        "rows_per_second_*: after the first batch of an epoch; start_ms_*: until the first batch",
        "queue_ms: of the consumer, for a batch that a worker has ready",
        f"step_ms, step_ms_*: the quietest of {REPEATS} runs of {STEPS} steps; the others are medians",
    ]
    for name, kind in (("clicks", ParquetStream), ("slow", SlowFeatures)):
        say(f"training steps, {name} features ...")
        measured, advice = training(kind, make)
        figures |= {f"{name}_{figure}": value for figure, value in measured.items()}
        notes.append(f"{name}: {usable_cores()} cores; {advice.reason}")
    report("Parquet stream", figures, notes)


if __name__ == "__main__":
    main()
