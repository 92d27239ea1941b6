"""A Parquet stream on real ranks: one order, equal steps, one builder of the cache, no hang with workers."""

import json
import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from torch import nn

import dtlab
from dtlab.data.cache import Cache
from dtlab.data.features import Features, FeatureSpec
from dtlab.data.parquet_stream import ParquetStream
from dtlab.data.stream_loader import StreamLoader
from dtlab.errors import UserError
from dtlab.train.trainer import Trainer

ROWS = 1010
SPEC = FeatureSpec(categorical=("c",), numeric=("x", "z"), label="y")


def launch(fn, nproc, *args, **options):
    return dtlab.launch(fn, nproc, *args, **{"timeout": 90, "echo": False, **options})


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Three files of 400, 400 and 210 rows, in row groups of 60; and features fitted on them."""
    folder = tmp_path_factory.mktemp("log")
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=ROWS), rng.normal(size=ROWS)
    y = (x - z + rng.normal(size=ROWS) > 0).astype(int)
    whole = pa.table({"c": rng.integers(0, 5, ROWS), "x": x, "z": z, "y": y})
    for number in range(3):
        part = whole.slice(400 * number, 400)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=60)
    return str(folder), Features.fit(whole, SPEC).to_json()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def forward(self, dense):
        return self.net(dense.double())[:, 0]


def loss(model, batch):
    return nn.functional.binary_cross_entropy_with_logits(
        model(batch.dense), batch.labels.double(), reduction="sum"
    )


def train(log, loader_options, steps=None, start=None):
    """Train from ``start`` for some steps, or to the end of the epoch and one more."""
    with dtlab.world():
        folder, features = log
        stream = ParquetStream(folder, Features.from_json(features), 96, window=3, seed=4)
        loader = StreamLoader(stream, **loader_options)
        model, seen = Model(), []
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.05),
            loss=loss,
            on_batch=lambda batch: seen.append(batch.ids.tolist()),
            show_progress=False,
        )
        if start is not None:
            loader.load_state_dict(start["loader"])
            model.load_state_dict(start["model"])
        results = [trainer.train_epoch(loader, max_steps=steps)]
        if steps is None:
            results.append(trainer.train_epoch(loader))
        return {
            "loader": loader.state_dict(),
            "model": {name: value.clone() for name, value in model.state_dict().items()},
            "seen": seen,
            "steps": [result.steps for result in results],
            "losses": [result.loss for result in results],
            "waited": results[0].wait_share > 0,
        }


def assert_same_model(one, other):
    for name, value in one["model"].items():
        torch.testing.assert_close(other["model"][name], value, rtol=0, atol=1e-12)


def test_the_trainer_gives_one_model_on_any_number_of_ranks_and_however_batches_are_read(log):
    (one,) = launch(train, 1, log, {"prefetch": 0})
    assert one["steps"] == [11, 11]
    assert one["losses"][1] < one["losses"][0]
    for nproc, options in ((2, {"num_workers": 1}), (4, {"prefetch": 1})):
        results = launch(train, nproc, log, options)
        for result in results:
            assert result["steps"] == [11, 11]
            assert result["waited"]
            assert result["loader"] == one["loader"]
            assert_same_model(one, result)
        for epoch in (slice(0, 11), slice(11, 22)):
            rows = sorted(row for result in results for ids in result["seen"][epoch] for row in ids)
            assert rows == list(range(ROWS))


def test_two_ranks_stopped_in_mid_epoch_go_on_as_three_with_no_row_lost_or_doubled(log):
    (one,) = launch(train, 1, log, {"prefetch": 0})
    before = launch(train, 2, log, {"prefetch": 1}, 4)
    assert before[0]["loader"] == before[1]["loader"]
    after = launch(train, 3, log, {"prefetch": 1}, None, before[0])
    assert [result["steps"] for result in after] == [[7, 11]] * 3
    for result in after:
        assert_same_model(one, result)
    rows = [row for result in before for ids in result["seen"] for row in ids]
    rows += [row for result in after for ids in result["seen"][:7] for row in ids]
    assert sorted(rows) == list(range(ROWS))


def disagree(log):
    with dtlab.world() as w:
        folder, features = log
        stream = ParquetStream(folder, Features.from_json(features), 96, window=2 + w.rank)
        try:
            iter(StreamLoader(stream))
        except UserError as error:
            return str(error)


def test_ranks_with_different_windows_are_told_so_before_a_row_is_seen(log):
    messages = launch(disagree, 2, log)
    assert messages[0] == messages[1]
    assert "ranks disagree on the sampler's window: {0: 2, 1: 3}" in messages[0]


def each_its_own_files(log):
    with dtlab.world() as w:
        paths = sorted(os.listdir(log[0]))[w.rank :: w.size]
        rows = sum(pq.read_metadata(os.path.join(log[0], path)).num_rows for path in paths)
        for _ in range(-(-rows // 48)):
            dist.all_reduce(torch.ones(1))
        return rows


def test_ranks_that_read_their_own_files_take_unequal_steps_and_the_stream_equal_ones(log):
    # 610 rows against 400: 13 steps against 9.
    with pytest.raises(dtlab.RankError, match="rank 1 of 2 has left after all_reduce #9, but rank 0 waits"):
        launch(each_its_own_files, 2, log, timeout=60)
    # 3 files for 4 ranks: nobody is without rows.
    results = launch(train, 4, log, {"prefetch": 0}, 11)
    assert [sum(map(len, result["seen"])) for result in results] == [253, 253, 252, 252]


def share_a_cache(log, folder, max_age):
    with dtlab.world() as w:
        cache = Cache("disk", folder, max_age_seconds=max_age)
        w.barrier()
        stream = ParquetStream(log[0], Features.from_json(log[1]), 96, cache=cache)
        ids = [batch.ids.tolist() for batch in StreamLoader(stream)]
        return {"read": stream.counts.groups_read, "ids": ids, **cache.summary()}


def test_one_rank_builds_the_cache_and_one_rebuilds_a_stale_entry_while_the_others_wait(log, tmp_path):
    def launch_and_add(max_age=None):
        results = launch(share_a_cache, 4, log, str(tmp_path), max_age)
        assert sorted(row for result in results for ids in result["ids"] for row in ids) == list(range(ROWS))
        return {
            name: sum(r[name] for r in results) for name in ("hits", "misses", "rebuilds", "waits", "read")
        }

    first = launch_and_add()
    assert (first["misses"], first["rebuilds"], first["read"]) == (1, 0, 18)
    assert first["hits"] + first["waits"] == 3
    assert launch_and_add(24 * 3600.0) == {"hits": 4, "misses": 0, "rebuilds": 0, "waits": 0, "read": 0}

    (manifest,) = [path for path in tmp_path.glob("*/manifest.json") if "table" in path.read_text()]
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "made": content["made"] - 25 * 3600}))
    stale = launch_and_add(24 * 3600.0)
    assert (stale["misses"], stale["rebuilds"], stale["read"]) == (0, 1, 18)
    assert stale["hits"] + stale["waits"] == 3
    assert not [path for path in tmp_path.rglob("*") if "building" in path.name]


class DiesWhileBuilding(ParquetStream):
    def _transformed(self, table, rows):
        if rows[0] >= 400:
            os.kill(os.getpid(), 9)
        return super()._transformed(table, rows)


def die_while_building(log, folder):
    with dtlab.world():
        DiesWhileBuilding(log[0], Features.from_json(log[1]), 96, cache=Cache("disk", folder))


def test_a_builder_killed_halfway_leaves_no_entry_and_no_lock(log, tmp_path):
    started = time.monotonic()
    with pytest.raises(dtlab.RankError, match="SIGKILL"):
        launch(die_while_building, 2, log, str(tmp_path))
    (result,) = launch(share_a_cache, 1, log, str(tmp_path), None)
    assert (result["misses"], result["rebuilds"], result["waits"]) == (1, 0, 0)
    assert time.monotonic() - started < 60
    assert not [path for path in tmp_path.rglob("*") if "building" in path.name]
