"""A run in a layout of its own is planned as that layout, beside what the planner would take."""

import json

import pytest

from dtlab.cli import main
from dtlab.cost.plan_layout import Layout, layout_strategies
from dtlab.cost.strategy import Strategy

SHAPE = """
[data]
name = "text"
[model]
dim = 512
num_layers = 8
num_heads = 8
sequence = 512
[optim]
global_batch = 64
micro_batch = 8
[run]
max_steps = 20000
[parallel]
"""
ON = ["--instances", "g5.12xlarge", "p4d"]


@pytest.fixture
def planned(tmp_path, capsys):
    def plan(table: str, *words: str, code: int = 0) -> str:
        path = tmp_path / "run.toml"
        path.write_text(SHAPE + table)
        assert main(["plan", "--config", str(path), *ON, *words]) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return plan


@pytest.mark.parametrize(
    ("table", "fixed"),
    [
        ("tp = 2\n", {"tp": 2, "pp": 1, "dp_shard": 1, "zero": 0}),
        ("dp_shard = 4\n", {"tp": 1, "pp": 1, "dp_shard": 4, "zero": 3}),
        ("zero1 = true\n", {"dp_shard": 1, "zero": 1}),
        ("tp = 2\npp = 2\nmicro_batches = 4\n", {"tp": 2, "pp": 2, "num_micro_batches": 4}),
        ('pp = 2\nschedule = "interleaved"\n', {"pp": 2, "stages_per_rank": 2, "schedule": "interleaved"}),
    ],
)  # fmt: skip
def test_degrees_of_the_run_are_kept_on_every_machine(planned, table, fixed):
    body = json.loads(planned(table, "--json"))
    for one in [body["best"], body["runner_up"], *body["frontier"]]:
        strategy = one["strategy"]
        assert {name: strategy[name] for name in fixed} == fixed
        made = Strategy(**strategy)
        assert made.world_size == one["gpus"]
        assert made.global_batch == 64


def test_what_the_planner_would_take_stands_beside(planned):
    body = json.loads(planned("tp = 4\ndp_replicate = 1\n", "--json"))
    assert body["layout"]["tp"] == body["best"]["strategy"]["tp"] == 4
    assert body["instead"]["strategy"]["tp"] == 1
    assert body["instead"]["usd"] < body["best"]["usd"]
    last = planned("tp = 4\ndp_replicate = 1\n").splitlines()[-1]
    assert "the layout of the run (tp 4)" in last
    assert "Left to choose, the planner takes" in last
    assert "[parallel] dp_shard = 4" in last
    assert f"${body['best']['usd']:,.2f}" in last


def test_layout_that_no_machine_can_hold_says_what_could_be_had(planned):
    said = planned("tp = 2\ndp_replicate = 1\n", code=2)
    assert "layout = 'tp 2'" in said
    assert "Left to choose, the planner takes" in said
    assert "\n" not in said.strip()


def test_layout_that_the_model_cannot_take_is_refused_as_a_run_is(planned):
    assert "tp = 3 does not divide num_heads = 8" in planned("tp = 3\n", code=2)


def test_flags_replace_the_layout(planned):
    body = json.loads(planned("tp = 2\n", "--tp", "4", "--json"))
    assert body["best"]["strategy"]["tp"] == 4
    assert "layout" not in body


def test_micro_batches_are_those_of_a_run():
    cut = [one["num_micro_batches"] for one in layout_strategies(Layout(pp=2, most=24), 64, 2, 8)]
    assert cut == [4]  # three parts of 24 or fewer, rounded up to a multiple of the stages
    assert list(layout_strategies(Layout(tp=4), 64, 8, cards=2)) == []
    assert list(layout_strategies(Layout(), 10, 4, cards=4)) == []
