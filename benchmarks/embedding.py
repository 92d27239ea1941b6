"""The embedding trap: what crosses in one step for a table of 1M x 16 of which 512 rows were touched?

Four ranks, float32, each looks up 512 different rows drawn at random; one step is lookup, sum, backward. The
traffic counter counts what every rank sends, and the figures are those of the rank that sends most. Every
way's bytes are held against its closed form in ``dtlab.cost.embedding``, on every rank.

Then skew: 4096 lookups on a rank with Zipf popularity (row i with probability proportional to 1/i), the
vocabulary sorted by frequency. Load = rows that a rank serves; the figures are the busiest rank's load over
the mean: blocks of rows, every n-th row, and blocks where duplicates were asked for one by one. The bytes
that the busiest rank sent are held against those that ``plan_table`` expected.
"""

import statistics
import time
from typing import Any

import torch
from torch import nn

import dtlab
from benchmarks.common import report, say
from dtlab.collectives import traffic
from dtlab.cost.embedding import (
    column_wise_bytes,
    dense_bytes,
    dtensor_bytes,
    row_wise_bytes,
    sparse_bytes,
)
from dtlab.cost.embedding_plan import plan_table
from dtlab.parallel import data_parallel
from dtlab.parallel.embedding import shard_embeddings
from dtlab.parallel.embedding_layout import Blocks
from dtlab.parallel.embedding_rows import RowWise

RANKS, ROWS, DIM, TOUCHED, LOOKUPS, STEPS = 4, 1_000_000, 16, 512, 4096, 5
WAYS = {
    "dense DDP": ("data_parallel", False),
    "sparse DDP": ("data_parallel", True),
    "row-wise": ("row_wise", True),
    "row-wise cyclic": ("row_wise_cyclic", True),
    "column-wise": ("column_wise", True),
    "table-wise": ("table_wise", True),
    "row-wise DTensor": ("row_wise_dtensor", False),
}


def measure(way: str) -> dict[str, Any]:
    """On each rank: bytes sent in one step, what the closed form needs, seconds of a step."""
    strategy, sparse = WAYS[way]
    with dtlab.world() as w:
        torch.manual_seed(0)
        model = shard_embeddings(nn.Sequential(nn.Embedding(ROWS, DIM, sparse=sparse)), strategy)
        table = model.get_submodule("0")
        if strategy == "data_parallel":
            model = data_parallel(model, w)
        times = []
        for step in range(STEPS + 2):  # DDP settles its buckets in the first two
            draw = torch.Generator().manual_seed(step * w.size + w.rank)
            indices = torch.randperm(ROWS, generator=draw)[:TOUCHED]
            model.zero_grad(set_to_none=True)
            w.barrier()
            started = time.perf_counter()
            model(indices).sum().backward()
            times.append(time.perf_counter() - started)
        model.zero_grad(set_to_none=True)
        with traffic() as counted:
            model(indices).sum().backward()
        return {
            "bytes": counted.bytes,
            "seconds": statistics.median(times[2:]),
            "asked_of": getattr(table, "asked_of", []),
            "unique": getattr(table, "num_unique", []),
        }


def expected(way: str, ranks: list[dict[str, Any]]) -> list[int]:
    """The closed form's bytes for each rank."""
    if way == "dense DDP":
        return [dense_bytes(ROWS, DIM, RANKS)] * RANKS
    if way == "sparse DDP":
        return [sparse_bytes(TOUCHED, DIM, RANKS)] * RANKS
    if way == "column-wise":
        return [column_wise_bytes(ranks[0]["unique"], rank, DIM) for rank in range(RANKS)]
    if way == "row-wise DTensor":
        return [dtensor_bytes(TOUCHED, DIM, RANKS)] * RANKS
    requests = [found["asked_of"] for found in ranks]
    return [row_wise_bytes(requests, rank, DIM) for rank in range(RANKS)]


def skewed() -> dict[str, int]:
    """Rows that this rank serves, and bytes that it sends in a step, under Zipf popularity."""
    with dtlab.world() as w:
        popularity = 1 / torch.arange(1, ROWS + 1, dtype=torch.float64)
        draw = torch.Generator().manual_seed(w.rank)
        indices = popularity.multinomial(LOOKUPS, replacement=True, generator=draw)
        loads = {}
        for name, strategy in (("blocks", "row_wise"), ("cyclic", "row_wise_cyclic")):
            table = shard_embeddings(nn.Embedding(ROWS, DIM, sparse=True), strategy)
            assert isinstance(table, RowWise)
            with traffic() as counted:
                table(indices).sum().backward()
            loads[name], loads[f"{name} bytes"] = sum(table.asked_by), counted.bytes
        owners, _ = Blocks(ROWS, w.size).place(torch.cat(w.gather(indices, dst=None)))
        loads["with duplicates"] = int((owners == w.rank).sum())
        return loads


def main() -> None:
    figures: dict[str, Any] = {}
    for way in WAYS:
        ranks = dtlab.launch(measure, RANKS, way, timeout=300, echo=False)
        sent, closed = [found["bytes"] for found in ranks], expected(way, ranks)
        name = way.replace(" ", "_").replace("-", "_").lower()
        figures[f"{name}_bytes_per_step"] = max(sent)
        figures[f"{name}_equals_closed_form"] = sent == closed
        figures[f"{name}_step_ms"] = 1e3 * max(found["seconds"] for found in ranks)
        say(f"  {way}: {max(sent):,} bytes")
    base = figures["dense_ddp_bytes_per_step"]
    for way in ("sparse_ddp", "row_wise", "column_wise"):
        figures[f"dense_ddp_over_{way}"] = base / figures[f"{way}_bytes_per_step"]
    loads = dtlab.launch(skewed, RANKS, timeout=300, echo=False)
    for name in ("blocks", "cyclic", "with duplicates"):
        own = [found[name] for found in loads]
        figures[f"skew_busiest_over_mean_{name.replace(' ', '_')}"] = max(own) / statistics.fmean(own)
        figures[f"skew_busiest_rows_{name.replace(' ', '_')}"] = max(own)
    plan = plan_table(ROWS, DIM, samples=LOOKUPS, ranks=RANKS, skew=1.0)
    planned = {option.name: option.bytes_per_step for option in plan.options}
    for name, strategy in (("blocks", "row_wise"), ("cyclic", "row_wise_cyclic")):
        sent_most = max(found[f"{name} bytes"] for found in loads)
        figures[f"skew_{strategy}_bytes_per_step"] = sent_most
        figures[f"skew_{strategy}_measured_over_planned"] = sent_most / planned[strategy]
    notes = [
        f"{ROWS:,} x {DIM} float32 on {RANKS} ranks, {TOUCHED} touched rows on each: bytes that the busiest",
        "rank sends in one step. Dense DDP ships the table, whatever was touched. The ranks share one",
        "machine, so the times compare ways on its memory, not on a network.",
        f"skew: {LOOKUPS} Zipf lookups on a rank, table sorted by frequency; 1.0 is balance, {RANKS}.0 all",
        "on one rank. Asking for each row once makes hot rows cheap; cyclic rows spread what is left.",
        "The plan for that table and batch, skew 1:",
        *(f"  {line}" for line in plan.lines()),
    ]
    report("The embedding trap: bytes of one step", figures, notes)


if __name__ == "__main__":
    main()
