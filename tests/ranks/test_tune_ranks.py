"""A search over trials of two ranks: pruned by one decision, gone on with after a kill, ended by budget."""

import json
from dataclasses import replace

import pytest

import dtlab
from dtlab.data.config import DataConfig
from dtlab.diagnose.record_file import read_record
from dtlab.train.config import ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.job import run
from dtlab.tune.search import search
from dtlab.tune.space import Choice
from dtlab.tune.study import StudyPlan, suggest


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    return TrainConfig(
        data=DataConfig(name="clicks", rows=2000, root=str(root)),
        model=ModelConfig(dim=4, hidden=(8,)),
        optim=OptimConfig(lr=5e-3, global_batch=100, max_epochs=2, patience=2),
        run=RunConfig(refit=False, output=None),
    )


def in_folder(config, folder):
    return replace(config, run=replace(config.run, folder=folder))


class OnRank0:
    """Ends a run at its third question; must only ever be asked on rank 0."""

    def __init__(self, prunes):
        self.prunes, self.asked = prunes, []

    def __call__(self, samples, value):
        assert dtlab.rank() == 0
        self.asked.append(samples)
        return f"pruned: asked at {self.asked}" if self.prunes and len(self.asked) == 3 else None


def test_one_answer_of_rank_0_ends_the_run_on_every_rank(config, tmp_path):
    found = dtlab.launch(run, 2, in_folder(config, tmp_path), OnRank0(True), 5, echo=False, timeout=200)
    reasons = [each["stopped_by"] for each in found]
    assert reasons == ["pruned: asked at [500, 1000, 1500]"] * 2
    assert found[0]["samples"] == 1500
    assert read_record(tmp_path).end.text("stopped_by") == reasons[0]


def test_questions_on_the_way_change_no_weight_and_no_count(config, tmp_path):
    plain = dtlab.launch(run, 2, in_folder(config, tmp_path / "plain"), echo=False, timeout=200)[0]
    asked = dtlab.launch(
        run, 2, in_folder(config, tmp_path / "asked"), OnRank0(False), 5, echo=False, timeout=200
    )[0]
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("plain", "asked")]
    assert weights[0] == weights[1]
    for name in ("samples", "epochs", "auc_validation", "unique_rows_seen", "duplicate_rows", "missed_rows"):
        assert plain[name] == asked[name], name


def test_search_goes_on_with_the_trial_that_a_kill_left(config, tmp_path):
    plan = StudyPlan(folder=tmp_path / "s", space={"optim.lr": Choice((2e-2, 1e-5))}, search="grid", rungs=4)
    plan.folder.mkdir()
    study = plan.open()
    study.enqueue_trial({"optim.lr": 2e-2})
    left = study.ask()  # the process that asked for it was killed
    assert suggest(left, plan.space) == {"optim.lr": 2e-2}
    lines = []
    found = search(config, plan, nproc=2, judge_every=5, timeout=200, tell=lines.append)
    assert lines[0].startswith("going on: 1 trials")
    assert [each.number for each in found.trials] == [0, 1]
    assert found.trials[0].values["optim.lr"] == 2e-2
    assert found.best is not None
    assert found.best.values["optim.lr"] == 2e-2
    assert found.ended_by == "grid"
    ends = [read_record(tmp_path / "s" / f"trial-{number}").end for number in (0, 1)]
    assert found.samples == sum(int(end.values["samples"]) for end in ends)
    # A search that is over finds the same again and trains nothing.
    again = search(config, plan, nproc=2, judge_every=5, timeout=200, tell=lines.append)
    assert again.trials == found.trials


def test_budget_ends_the_search_and_the_command_prints_the_bill(config, tmp_path, capsys):
    from dtlab.cli import main

    file = tmp_path / "search.toml"
    file.write_text(
        f'[data]\nname = "clicks"\nrows = 2000\nroot = "{config.data.root}"\n[model]\ndim = 4\nhidden = [8]\n'
        '[optim]\nglobal_batch = 100\nmax_epochs = 1\n[tune.space]\n"optim.lr" = {low = 1e-4, high = 1e-2}\n'
    )
    words = ["tune", str(file), "--budget-usd", "1e-6", "--folder", str(tmp_path / "s"), "--json"]
    assert main([*words, "--nproc", "1"]) == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["ended_by"] == "budget"
    assert [each["state"] for each in found["trials"]] == ["pruned"]  # the search ended it, no fault did
    assert "the budget" in said.err
    assert "ml.g4dn.12xlarge" in found["bill"]


def test_sample_limit_ends_the_trial_that_reaches_it(config, tmp_path):
    plan = StudyPlan(folder=tmp_path / "s", space={"optim.lr": Choice((1e-3, 2e-3))}, rungs=4)
    found = search(config, plan, nproc=1, judge_every=5, max_samples=800, timeout=200, tell=print)
    assert found.ended_by == "budget"
    assert [(each.state, each.samples) for each in found.trials] == [("pruned", 1000)]
    assert "all that the search had left" in read_record(tmp_path / "s" / "trial-0").end.text("stopped_by")
