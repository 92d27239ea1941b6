"""The small parts of the training core, each alone in one process."""

import json
import math
import os
import warnings

import pytest
import torch

from dtlab.data.batch import Batch
from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.errors import DtlabWarning, UserError
from dtlab.files import require_writable
from dtlab.train.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.losses import MeanLoss
from dtlab.train.metrics import binary_auc, evaluate
from dtlab.train.record import Record, new_run_folder, write_json
from dtlab.train.stopping import BestEpoch
from dtlab.train.trainer import Trainer, global_steps


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, categorical, dense):
        return self.layer(dense).squeeze(-1)


def table(rows: int) -> Batch:
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
    labels = (dense[:, 0] > 0.2).double()
    return Batch(torch.arange(rows), torch.zeros(rows, 0, dtype=torch.int64), dense, labels)


def test_step_is_plain_torch_on_the_mean_loss_with_the_same_bits():
    torch.manual_seed(0)
    ours, plain = Linear(), Linear()
    plain.load_state_dict(ours.state_dict())
    trainer = Trainer(ours, torch.optim.AdamW(ours.parameters(), lr=0.05))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.05)
    data = table(640)
    for batch, rows in global_steps(Loader(data, GlobalBatchSampler(640, 64, rank=0, world_size=1))):
        trainer.step(batch, rows)
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(plain(None, batch.dense), batch.labels)
        loss.backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_short_last_batch_counts_its_own_rows():
    steps = list(global_steps(Loader(table(10), GlobalBatchSampler(10, 4, rank=0, world_size=1))))
    assert [(len(batch), rows) for batch, rows in steps] == [(4, 4), (4, 4), (2, 2)]


def test_stopping_after_some_steps_leaves_the_loader_at_the_next_one():
    loader = Loader(table(10), GlobalBatchSampler(10, 4, rank=0, world_size=1, shuffle=False))
    first = [batch.ids.tolist() for batch, _ in global_steps(loader, 1)]
    rest = [batch.ids.tolist() for batch, _ in global_steps(loader)]
    assert first + rest == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_mean_loss_survives_many_steps():
    losses = MeanLoss()
    for _ in range(2500):
        losses.add(torch.tensor(0.5), 2)
    assert losses.read() == (1250.0, 5000)
    assert losses.read() == (0.0, 0)


def test_evaluation_counts_rows_and_orders_by_id():
    model, data = Linear(), table(101)
    metrics = evaluate(model, data, batch=7)
    assert metrics.rows == 101
    shuffled = evaluate(model, data.take(torch.randperm(101)), batch=13)
    assert metrics == shuffled


def test_evaluation_refuses_rows_that_share_an_id():
    data = table(4)
    twice = Batch(torch.tensor([0, 1, 1, 2]), data.categorical, data.dense, data.labels)
    with pytest.raises(UserError, match="more than once, first id 1"):
        evaluate(Linear(), twice)


def test_auc_counts_pairs_also_for_logits_that_a_float32_sigmoid_would_tie():
    logits = torch.tensor([40.0, 41.0, 42.0, 43.0], dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert binary_auc(logits, labels) == pytest.approx(3 / 4)
    assert math.isnan(binary_auc(logits, torch.ones(4)))
    assert math.isnan(binary_auc(torch.tensor([math.nan, 1.0, 2.0, 3.0]), labels))
    tied = torch.zeros(4)
    assert binary_auc(tied, labels) == pytest.approx(0.5)


def test_first_metric_is_an_improvement_and_nan_is_none():
    stop = BestEpoch(patience=2)
    assert [stop.update(v) for v in (0.0, 0.0, float("nan"))] == [False, False, True]
    assert (stop.best, stop.best_epoch) == (0.0, 1)


def test_configuration_survives_json():
    config = TrainConfig(
        data=DataConfig(name="parquet", path="x", label="y", categorical=("a", "b")),
        optim=OptimConfig(lr=0.1),
    )
    assert TrainConfig.from_dict(config.to_dict()) == config
    with pytest.raises(UserError, match=r"optim\.lrr"):
        TrainConfig.from_dict({"optim": {"lrr": 1}})


def test_two_runs_in_one_second_get_two_folders(tmp_path):
    assert len({new_run_folder(tmp_path) for _ in range(3)}) == 3


def test_json_is_written_whole_or_refused(tmp_path):
    write_json(tmp_path / "deep" / "report.json", {"a": 1})
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["report.json"]
    with pytest.raises(UserError, match="report = "):
        write_json(tmp_path / "deep" / "report.json" / "x.json", {})


def test_report_through_a_link_or_into_a_pipe_leaves_link_and_pipe(tmp_path):
    link, pipe = tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to("target.json")
    require_writable(link, "report")
    write_json(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads((tmp_path / "target.json").read_text()) == {"a": 1}

    os.mkfifo(pipe)
    require_writable(pipe, "report")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_json(pipe, {"a": 1})
        assert json.loads(os.read(reader, 1000)) == {"a": 1}
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_name_that_is_too_long_is_refused_and_the_longest_one_written(tmp_path):
    with pytest.raises(UserError, match=r"report = .*too long"):
        require_writable(tmp_path / ("x" * 300), "report")
    with pytest.raises(UserError, match=r"report = .*too long"):
        write_json(tmp_path / ("x" * 300), {})
    longest = tmp_path / ("x" * 255)
    require_writable(longest, "report")
    write_json(longest, {})
    assert longest.exists()


def test_figures_that_are_not_finite_are_null_in_json(tmp_path):
    write_json(tmp_path / "r.json", {"auc": math.nan, "deep": [{"loss": math.inf}, 1.5], "rows": 3})
    assert json.loads((tmp_path / "r.json").read_text()) == {
        "auc": None,
        "deep": [{"loss": None}, 1.5],
        "rows": 3,
    }


def test_record_without_a_folder_keeps_quiet():
    record = Record(None)
    record.write("epoch", auc=1.0)
    record.close()


def test_run_config_names_field_and_value():
    with pytest.raises(UserError, match=r"run.log_every = 0: must be at least 1"):
        RunConfig(log_every=0)


def test_record_that_cannot_be_opened_names_the_file_and_the_fix(tmp_path):
    (tmp_path / "record.jsonl").mkdir()
    with pytest.raises(UserError, match=r"run record .*record\.jsonl.*: Is a directory; give run\.folder"):
        Record(tmp_path)


def test_record_on_a_full_disk_warns_once_and_training_goes_on(tmp_path):
    (tmp_path / "record.jsonl").symlink_to("/dev/full")
    record = Record(tmp_path)
    with pytest.warns(DtlabWarning, match="run record .*No space left on device; training goes on"):
        record.write("epoch", epoch=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record.write("epoch", epoch=2)
        record.close()
