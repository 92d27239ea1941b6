"""A fit of own runs stands behind the planner's times, with where it is from; what it cannot say is said."""

import json
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.cost.own_calibration import gpu_of

RUN = Path("examples/flights.toml")
PLAN = ["plan", "--config", str(RUN), "--instances", "g4dn.xlarge", "g5.xlarge"]
FIXED, PER_SAMPLE = 0.020, 5e-6


def write_record(
    folder: Path, ranks: int, batch: int, *, card: str | None = "Tesla T4", cores: int = 4
) -> str:
    """A record of a run on that card, under a known law without communication."""
    folder.mkdir()
    config = {"data": {"name": "flights"}, "optim": {"global_batch": batch}}
    start = {"event": "start", "config": config, "world_size": ranks, "num_nodes": 1}
    start["environment"] = {"cores": cores, "card": card, "threads": 1, "torch": "2.13.0"}
    speed = batch / (FIXED + PER_SAMPLE * batch / ranks)
    reading = {"event": "reading", "samples_per_second": speed, "wait_share": 0.0, "communication_share": 0.0}
    lines = [start, *[reading] * 6, {"event": "end"}]
    (folder / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


@pytest.fixture
def calibrated(tmp_path, capsys):
    def make(**about) -> str:
        runs = [write_record(tmp_path / f"run-{batch}", 1, batch, **about) for batch in (2048, 16384)]
        assert main(["cost", "fit", *runs, "--output", str(tmp_path / "own.json")]) == 0
        assert "for dtlab plan --calibration" in capsys.readouterr().out
        return str(tmp_path / "own.json")

    return make


def printed(capsys, *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_step_of_the_plan_is_that_of_the_runs(calibrated, capsys):
    found = printed(capsys, *PLAN, "--calibration", calibrated(), "--precision", "amp")
    t4 = next(one for one in [found["best"], found["runner_up"]] if one["instance"] == "g4dn.xlarge")
    assert t4["step_seconds"] == pytest.approx(FIXED + 4096 * PER_SAMPLE, rel=1e-6)
    assert "of runs like your runs run-2048, run-16384" in t4["trust"]
    assert found["calibration"]["gpu"] == "T4"


def test_measured_card_is_not_passed_over_for_a_format_that_was_not_measured(calibrated, capsys):
    words = ["plan", "--config", str(RUN), "--instances", "g4dn.xlarge", "--calibration", calibrated()]
    found = printed(capsys, *words)
    assert found["best"]["strategy"]["precision"] == "amp"
    assert found["best"]["step_seconds"] == pytest.approx(FIXED + 4096 * PER_SAMPLE, rel=1e-6)
    assert found["calibration"]["is_used"] is True
    assert main(words) == 0
    assert "Calibration from your runs run-2048, run-16384" in capsys.readouterr().out


def test_other_cards_and_models_stay_with_the_table(calibrated, capsys):
    own = calibrated()
    alone = printed(capsys, *PLAN[:-2], "g5.xlarge")["best"]
    found = printed(capsys, *PLAN[:-2], "g5.xlarge", "--calibration", own)
    assert found["best"]["step_seconds"] == alone["step_seconds"]
    assert found["calibration"]["is_used"] is False
    bert = ["plan", "BERT-large", "--samples", "1e6", "--global-batch", "256", "--instances", "g4dn"]
    assert main([*bert, "--calibration", own]) == 0
    assert "a recommender, which BERT-large is not" in capsys.readouterr().out


def test_runs_on_a_cpu_price_no_card_and_tell_their_own_time(calibrated, capsys):
    own = calibrated(card=None)
    assert main([*PLAN, "--calibration", own]) == 0
    out = capsys.readouterr().out
    assert "on 4 CPU cores" in out
    assert "no time above rests on it" in out
    seconds = printed(capsys, *PLAN)["steps"] * (FIXED + 4096 * PER_SAMPLE)
    assert f"{seconds:.3g} s" in out  # under a tenth of an hour


def test_card_names_of_drivers_are_those_of_the_catalogue():
    names = ("NVIDIA A10G", "NVIDIA L40S", "NVIDIA L4", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB")
    assert [gpu_of(name) for name in names] == ["A10G", "L40S", "L4", "H100", "V100"]
    assert gpu_of("NVIDIA RTX PRO 6000 Blackwell Server Edition") == "RTX PRO Server 6000"
    assert gpu_of("AMD Instinct MI300X") is None


def test_card_that_the_catalogue_lacks_is_named_and_leaves_no_file(tmp_path, capsys):
    runs = [write_record(tmp_path / f"{b}", 1, b, card="NVIDIA GeForce RTX 3090") for b in (2048, 16384)]
    assert main(["cost", "fit", *runs, "--output", str(tmp_path / "own.json")]) == 2
    assert "card = 'NVIDIA GeForce RTX 3090'" in capsys.readouterr().err
    assert not (tmp_path / "own.json").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"eta": -1}, "eta = -1"),
        ({"eta": 7.0}, "eta = 7.0"),
        ({"fixed_seconds": "much"}, "fixed_seconds = 'much'"),
        ({"format": "something"}, "is no 'dtlab calibration 1'"),
        ({"runs": []}, "runs = []"),
        ({"runs": [{"ranks": 0}]}, "ranks = 0"),
        ({"kind": "poem"}, "kind = 'poem'"),
        ({"card": 5}, "card = 5"),
        ({"error": None}, "error = None"),
    ],
)
def test_changed_file_is_refused_in_a_line(calibrated, capsys, change, said):
    path = Path(calibrated())
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert main([*PLAN, "--calibration", str(path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "NaN"])
def test_file_that_is_no_calibration_is_refused_in_a_line(tmp_path, capsys, text):
    path = tmp_path / "own.json"
    path.write_text(text)
    assert main([*PLAN, "--calibration", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("dtlab: calibration = ")
    assert err.count("\n") == 1


def test_output_must_be_a_name_that_the_plan_takes(tmp_path, capsys):
    assert main(["cost", "fit", "a", "b", "--output", str(tmp_path / "own.txt")]) == 2
    assert "must end in .json" in capsys.readouterr().err
