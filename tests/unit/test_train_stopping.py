"""Early stopping, budgets, signals and the folder of a run: decisions in one process."""

import json
import math
import os
import signal
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from typing import ClassVar

import pytest

from dtlab.cost import billing
from dtlab.data.config import DataConfig
from dtlab.errors import UserError
from dtlab.train.budget import Budget
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.config import (
    CheckpointConfig,
    OptimConfig,
    PrecisionConfig,
    RunConfig,
    StoppingConfig,
    TrainConfig,
)
from dtlab.train.flags import Flags
from dtlab.train.notice import SpotNotice
from dtlab.train.parts import interval_too_long
from dtlab.train.resume import after_failure, beginning, changes, job_name, run_folder
from dtlab.train.signals import StopSignals
from dtlab.train.stopping import EarlyStopping


def test_first_metric_is_an_improvement_and_the_fourth_stops():
    stop = EarlyStopping(patience=2, mode="min")
    answers = [
        (stop.update(loss, n), stop.bad_epochs) for n, loss in enumerate((1.0, 0.5, 0.5, 0.5), start=1)
    ]
    assert answers == [(False, 0), (False, 0), (False, 1), (True, 2)]


def test_zeros_are_compared_and_nan_is_no_improvement():
    stop = EarlyStopping(patience=3, mode="min")
    values = (0.0, 0.0, math.nan, 0.0)
    assert [stop.update(value, n) for n, value in enumerate(values, start=1)] == [False, False, False, True]
    assert (stop.best, stop.best_epoch) == (0.0, 1)


def test_patience_is_counted_in_samples_and_not_in_validations():
    ends = []
    for samples in (50, 100, 200):
        stop, seen = EarlyStopping(patience=400), 200
        stop.update(0.7, seen)
        while True:
            seen += samples
            if stop.update(0.6, seen):
                break
        ends.append(seen)
    assert ends == [600, 600, 600]


def test_counter_goes_on_after_a_resume():
    one = EarlyStopping(patience=2)
    one.update(0.7, 1)
    one.update(0.6, 2)
    other = EarlyStopping(patience=2)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.bad_epochs == 1
    assert other.update(0.65, 3)
    with pytest.raises(UserError, match="stopping state"):
        other.load_state_dict({"best": 1.0})


def test_budget_counts_earlier_attempts_in_seconds_and_dollars():
    instance = "ml.g4dn.12xlarge"
    assert Budget(100, instance=instance, spent_seconds=99).reason() is None
    spent = Budget(100, instance=instance, spent_seconds=101)
    assert spent.is_spent()
    assert "stopping.max_seconds = 100" in spent.reason()
    hour = billing.cost(instance, 3600, count=2).usd
    assert not Budget(max_usd=hour, instance=instance, count=2, spent_seconds=3590).is_spent()
    assert Budget(max_usd=hour, instance=instance, count=2, spent_seconds=3600).is_spent()
    assert not Budget(instance=instance, spent_seconds=1e9).is_spent()


def test_signals_are_noted_and_a_second_interrupt_is_not_caught():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (signals.received, signals.wants_checkpoint) == (None, True)
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


def test_flags_travel_every_k_steps_that_last_about_a_second(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("dtlab.train.flags.time.perf_counter", lambda: now[0])
    flags, due, exchanges = Flags(seconds=1.0), 1, []
    for steps in range(1, 1001):  # 10 s in steps of 10 ms
        now[0] += 0.01
        if steps == due:
            flags.exchange(flags.every)
            exchanges.append(steps)
            due += flags.every
    gaps = [b - a for a, b in pairwise(exchanges)]
    assert gaps[:6] == [2, 4, 8, 16, 32, 64]
    assert set(gaps[6:]) <= {99, 100}
    with pytest.raises(UserError, match="flag 'stopp' is unknown"):
        flags.raise_("stopp")


def test_interval_longer_than_the_run_is_said_with_both_numbers():
    config = TrainConfig(checkpoint=CheckpointConfig(every_steps=50), run=RunConfig(max_steps=6))
    line = interval_too_long(config, 100)
    assert "checkpoint.every_steps = 50" in line
    assert "at most 6 steps" in line
    assert interval_too_long(replace(config, run=RunConfig(max_steps=50)), 100) is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PrecisionConfig(name="fp8"), "precision.name = 'fp8'"),
        (lambda: CheckpointConfig(every_steps=0), "checkpoint.every_steps = 0"),
        (lambda: CheckpointConfig(keep=0), "checkpoint.keep = 0"),
        (lambda: StoppingConfig(max_usd=-1), "stopping.max_usd = -1"),
        (lambda: StoppingConfig(non_finite="ignore"), "stopping.non_finite = 'ignore'"),
        (lambda: OptimConfig(micro_batch=0), "optim.micro_batch = 0"),
        (lambda: OptimConfig(clip=math.nan), "optim.clip = nan"),
    ],
)
def test_wrong_value_is_named_with_its_field(build, message):
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        build()


def test_launchers_keep_the_name_of_a_job_over_restarts():
    assert job_name({"DTLAB_LAUNCH": "ab12.0"}) == job_name({"DTLAB_LAUNCH": "ab12.3"}) == "ab12"
    assert job_name({"TORCHELASTIC_RUN_ID": "night"}) == "torchrun-night"
    assert job_name({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}) == "slurm-7"
    assert job_name({}) is None


def test_a_job_finds_its_own_folder_and_no_other(tmp_path, monkeypatch):
    config = TrainConfig(run=RunConfig(output=tmp_path))
    monkeypatch.setenv("DTLAB_LAUNCH", "aaaa.0")
    first = run_folder(config)
    monkeypatch.setenv("DTLAB_LAUNCH", "aaaa.1")
    assert run_folder(config) == first
    assert run_folder(replace(config, optim=OptimConfig(lr=0.5))) != first
    (first / "model").mkdir()
    (first / "model" / "model.json").write_text("{}")
    assert run_folder(config) != first  # that run is over
    with pytest.raises(UserError, match="holds a finished run"):
        run_folder(replace(config, run=RunConfig(folder=first)))
    with pytest.raises(UserError, match="no interrupted run with a checkpoint"):
        run_folder(replace(config, run=RunConfig(output=tmp_path, resume=True)))


def test_a_run_goes_on_with_another_rate_but_not_with_other_data():
    saved = {"data_version": "v1", "config": TrainConfig().to_dict()}

    def now(config, version="v1"):
        return {"data_version": version, "config": config.to_dict()}

    assert changes(saved, now(TrainConfig())) == []
    assert changes(saved, now(TrainConfig(optim=OptimConfig(lr=0.5)))) == ["optim.lr 0.002 -> 0.5"]
    with pytest.raises(UserError, match=r"data\.rows = 7: the interrupted run had 200000"):
        changes(saved, now(TrainConfig(data=DataConfig(rows=7))))
    with pytest.raises(UserError, match="version v2 now, the interrupted run saw v1"):
        changes(saved, now(TrainConfig(), "v2"))


@pytest.mark.parametrize("saved", [{}, {"data_version": "v1"}, {"data_version": "v1", "config": None}])
def test_a_checkpoint_that_does_not_describe_its_run_is_refused(saved):
    with pytest.raises(UserError, match="does not say"):
        changes(saved, {"data_version": "v1", "config": TrainConfig().to_dict()})


class Host(BaseHTTPRequestHandler):
    """A host that has no notice at first."""

    answers: ClassVar[list[int]] = [404, 404, 200]

    def do_PUT(self):
        self.send_error(404)

    def do_GET(self):
        self.send_response(self.answers.pop(0))
        self.end_headers()

    def log_message(self, *_):
        pass


def test_notice_of_a_spot_host_asks_to_stop_without_the_proxy_of_the_environment(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with (
            StopSignals() as signals,
            SpotNotice(
                signals, f"http://127.0.0.1:{server.server_port}/spot/instance-action", 0.05
            ) as notice,
        ):
            notice._thread.join(timeout=60)
            assert signals.received == "spot notice"
            assert Host.answers == []
        server.shutdown()


@pytest.mark.parametrize(("date", "own"), [(1999.991, True), (1999.98, False)])
def test_a_record_dated_by_the_systems_last_tick_is_the_runs_own(tmp_path, date, own):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.jsonl").touch()
    os.utime(tmp_path / "run" / "record.jsonl", (date, date))  # Linux at 100 ticks a second, started at 2000
    assert bool(after_failure(TrainConfig(run=RunConfig(output=tmp_path)), 2000.0)) == own


def test_a_failure_names_the_last_complete_checkpoint_of_its_own_run(tmp_path):
    config = TrainConfig(run=RunConfig(output=tmp_path))
    assert after_failure(config, 0.0) == []  # it came to no folder
    earlier, own = (tmp_path / "earlier", tmp_path / "own")
    for folder, since in ((earlier, 1000.0), (own, 3000.0)):
        folder.mkdir()
        (folder / "record.jsonl").touch()
        os.utime(folder / "record.jsonl", (since, since))
    with Checkpointer(earlier / "checkpoints", asynchronous=False) as checkpoints:
        checkpoints.save({"x": {"value": 1}}, 7, samples=7)
    assert after_failure(config, 2000.0) == [
        "last complete checkpoint: none yet (checkpoint.every_seconds = 600)",
        "begin again with the same command",
    ]
    with Checkpointer(own / "checkpoints", asynchronous=False) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save({"x": {"value": step}}, step, samples=step)
    newest = max((own / "checkpoints").glob("save-*"))
    (newest / "state.json").write_text("{}")
    line, way_on = after_failure(config, 2000.0)
    assert line == f"last complete checkpoint: step 20, in {own}"
    assert way_on == "go on with the same command and --resume"
    assert after_failure(replace(config, run=RunConfig(folder=earlier)), 2000.0)[0].endswith(
        f"7, in {earlier}"
    )
    assert "2 runs were going on" in after_failure(config, 500.0)[0]
    assert "no folder" in after_failure(TrainConfig(run=RunConfig(output=None)), 0.0)[0]


def test_only_a_run_that_was_to_go_on_says_that_it_begins_anew(tmp_path):
    first, again = TrainConfig(), TrainConfig(run=RunConfig(resume=True))
    line = f"{tmp_path} holds no complete checkpoint: beginning at step 0"
    assert beginning(first, tmp_path, was_restarted=False) is None
    assert beginning(first, tmp_path, was_restarted=True) == line
    assert beginning(again, tmp_path, was_restarted=False) == line


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"patience": "2"}, "patience = '2'"),
        ({"patience": None}, "patience = None"),
        ({"patience": True}, "patience = True"),
        ({"patience": 1, "min_delta": "x"}, "min_delta = 'x'"),
    ],
)
def test_rule_that_is_no_number_names_itself(options, named):
    with pytest.raises(UserError, match=named):
        EarlyStopping(**options)


@pytest.mark.parametrize("samples", [50, float("nan"), "300"])
def test_sample_count_that_starts_anew_every_epoch_would_never_stop(samples):
    stop = EarlyStopping(patience=200)
    stop.update(0.7, 100)
    with pytest.raises(UserError, match=r"samples = .*since the start of the run"):
        stop.update(0.6, samples)
