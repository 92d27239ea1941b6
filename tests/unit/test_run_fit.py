"""Fitting a step's time to runs: laws that are known come back, what is unknown is said."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtlab.cli import main
from dtlab.cost.run_fit import RunSteps, fit_runs
from dtlab.diagnose.record_file import read_record
from dtlab.diagnose.record_steps import run_steps
from dtlab.errors import UserError

FIXED, PER_SAMPLE = 0.004, 2e-6


def run(ranks: int, batch: int, **about: Any) -> RunSteps:
    """A run under a known law: compute, and a ring of 1 ms latency and 3 ms volume."""
    cores = about.get("cores")
    slow = max(1.0, ranks / cores) if cores else 1.0
    talk = 2 * (ranks - 1) * 1e-3 + 2 * (ranks - 1) / ranks * 3e-3
    seconds = slow * (FIXED + PER_SAMPLE * batch / ranks) + talk
    return RunSteps(
        ranks=ranks, global_batch=batch, step_seconds=seconds, communication_seconds=talk, **about
    )


def write_record(
    folder: Path, ranks: int, batch: int, seconds: float, *, communication: float = 0.0, dim: int = 8,
    readings: int = 8, **environment: object,
) -> Path:  # fmt: skip
    """A record as ``dtlab train`` leaves it; the first reading is a slow one."""
    folder.mkdir(parents=True)
    config = {"model": {"dim": dim}, "data": {"name": "flights"}, "optim": {"global_batch": batch}}
    start = {"event": "start", "config": config, "world_size": ranks, "num_nodes": 1}
    start["environment"] = {"cores": 2, "card": None, "threads": 1, **environment}
    lines: list[dict[str, object]] = [start]
    for number in range(readings):
        took = seconds * (5 if number == 0 else 1)
        share = communication / seconds
        lines.append(
            {"event": "reading", "samples_per_second": batch / took, "wait_share": 0.0,
             "communication_share": share}
        )  # fmt: skip
    lines.append({"event": "end"})
    path = folder / "record.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_two_runs_of_one_global_batch_give_the_law_back() -> None:
    fit = fit_runs([run(1, 4096), run(2, 4096)])
    assert fit.fixed == pytest.approx(FIXED)
    assert fit.per_sample == pytest.approx(PER_SAMPLE)
    larger = fit.predict(ranks=2, global_batch=32768)
    assert larger.step_seconds == pytest.approx(run(2, 32768).step_seconds)


def test_a_third_run_tells_latency_from_volume_and_predicts_eight_ranks() -> None:
    fit = fit_runs([run(1, 4096), run(2, 4096), run(4, 4096)])
    assert (fit.latency, fit.volume) == pytest.approx((1e-3, 3e-3))
    assert fit.predict(8, 4096).step_seconds == pytest.approx(run(8, 4096).step_seconds)


def test_ranks_that_share_cores_are_slower_and_a_note_says_so() -> None:
    fit = fit_runs([run(1, 4096, cores=2), run(2, 4096, cores=2)])
    four = fit.predict(4, 4096)
    assert four.compute_seconds == pytest.approx(2 * (FIXED + PER_SAMPLE * 1024))
    assert any("4 ranks share 2 cores" in note for note in four.notes)
    assert any("fitted to 2" in note for note in four.notes)
    assert fit.predict(2, 8192).notes == ()


def test_noise_of_the_runs_becomes_an_error_of_the_prediction() -> None:
    calm = fit_runs([run(1, 4096, spread=0.01), run(2, 4096, spread=0.01)]).predict(2, 16384)
    noisy = fit_runs([run(1, 4096, spread=0.10), run(2, 4096, spread=0.10)]).predict(2, 16384)
    assert 0 < calm.error < 0.12 < noisy.error


def test_error_grows_with_the_distance_from_the_runs() -> None:
    fit = fit_runs([run(1, 4096, cores=2), run(2, 4096, cores=2)])
    batches = [fit.predict(2, batch).error for batch in (4096, 16384, 65536, 262144)]
    assert batches == sorted(set(batches))
    assert batches[0] >= 0.045  # the same run, started again, is not the same to the per cent
    ranks = [fit.predict(many, 4096).error for many in (2, 4, 8)]
    assert ranks == sorted(set(ranks))
    assert ranks[1] >= 0.3  # two cores, four ranks, and no run that shared a core


def test_nine_of_ten_predictions_are_within_their_error() -> None:
    draw, hits, wide = random.Random(0), 0, []

    def noisy(ranks: int, batch: int) -> RunSteps:
        exact, again = run(ranks, batch), draw.gauss(1.0, 0.03)
        return replace(exact, step_seconds=exact.step_seconds * again, spread=0.02)

    for _ in range(200):
        found = fit_runs([noisy(1, 4096), noisy(2, 4096)]).predict(2, 16384)
        off = abs(noisy(2, 16384).step_seconds / found.step_seconds - 1)
        hits += off <= found.error
        wide.append(found.error)
    assert 170 <= hits < 200  # neither too sure nor safe by being vague
    assert max(wide) < 0.25


def test_messages_of_ranks_that_share_a_core_wait_for_it() -> None:
    fit = fit_runs([run(1, 4096, cores=2), run(2, 4096, cores=2)])
    alone = fit_runs([run(1, 4096), run(2, 4096)])
    assert fit.predict(4, 4096).communication_seconds == pytest.approx(
        2 * alone.predict(4, 4096).communication_seconds
    )


def test_runs_that_contradict_each_other_are_not_predicted_with_confidence() -> None:
    odd = RunSteps(ranks=1, global_batch=4096, step_seconds=0.74)  # twenty times what two ranks took
    fit = fit_runs([odd, run(2, 4096)])
    assert fit.predict(2, 4096).error > 0.5
    # The runs on two ranks still stand for two ranks.
    assert fit.predict(2, 4096).step_seconds == pytest.approx(run(2, 4096).step_seconds, rel=0.05)


def test_different_threads_are_told_and_each_number_of_ranks_keeps_its_own_speed() -> None:
    quick = RunSteps(ranks=1, global_batch=4096, step_seconds=0.006, threads=2)
    fit = fit_runs([quick, run(2, 4096, threads=1)])
    larger = fit.predict(2, 8192)
    assert any("OMP_NUM_THREADS=1" in note for note in larger.notes)
    # Not below what the known law gives, and above it by the fixed part at most.
    assert 0 <= larger.step_seconds - run(2, 8192).step_seconds <= FIXED
    assert fit.predict(1, 4096).step_seconds == pytest.approx(0.006)
    assert larger.error >= 0.15


def test_runs_with_other_threads_do_not_move_the_line() -> None:
    quick = RunSteps(ranks=1, global_batch=4096, step_seconds=0.007, threads=2)
    fit = fit_runs([quick, run(2, 4096, threads=1), run(2, 8192, threads=1)])
    assert fit.predict(2, 16384).step_seconds == pytest.approx(run(2, 16384).step_seconds)
    assert fit.predict(2, 16384).error < 0.12  # that of three readings, not that of other threads
    assert fit.predict(1, 4096).step_seconds == pytest.approx(0.007)


def test_one_batch_a_rank_cannot_be_fitted() -> None:
    with pytest.raises(UserError, match="one batch a rank"):
        fit_runs([run(1, 4096), run(2, 8192)])


@pytest.mark.parametrize(("ranks", "batch"), [(0, 4096), (2, 1), (2, 0)])
def test_a_step_that_cannot_be_is_refused(ranks: int, batch: int) -> None:
    with pytest.raises(UserError):
        fit_runs([run(1, 4096), run(2, 4096)]).predict(ranks, batch)


def test_a_record_gives_the_median_of_its_readings_without_the_first(tmp_path: Path) -> None:
    steps = run_steps(read_record(write_record(tmp_path / "a", 2, 4096, 0.02, communication=0.005)))
    assert steps.step_seconds == pytest.approx(0.02)
    assert steps.communication_seconds == pytest.approx(0.005)
    assert (steps.ranks, steps.global_batch, steps.cores, steps.threads) == (2, 4096, 2, 1)


def test_ranks_on_cards_do_not_share_cores(tmp_path: Path) -> None:
    assert run_steps(read_record(write_record(tmp_path / "a", 4, 4096, 0.02, card="T4"))).cores is None


def test_a_record_without_readings_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run\.log_every"):
        run_steps(read_record(write_record(tmp_path / "a", 2, 4096, 0.02, readings=1)))


def test_the_command_predicts_in_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_record(tmp_path / "one", 1, 4096, FIXED + 4096 * PER_SAMPLE)
    two = write_record(tmp_path / "two", 2, 4096, FIXED + 2048 * PER_SAMPLE + 0.002, communication=0.002)
    words = ["cost", "fit", str(one), str(two), "--ranks", "2", "--batch", "16384"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (predicted,) = told["predictions"]
    assert predicted["step_seconds"] == pytest.approx(FIXED + 8192 * PER_SAMPLE + 0.002)
    assert told["fit"]["fixed_seconds"] == pytest.approx(FIXED)
    assert main(words) == 0
    assert "22.38 ms" in capsys.readouterr().out


def test_the_price_of_a_run_is_still_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "ml.g5.12xlarge", "--hours", "2"]) == 0
    assert capsys.readouterr().out.startswith("$14.18")


def test_what_cannot_be_fitted_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_record(tmp_path / "one", 1, 4096, 0.02)
    other = write_record(tmp_path / "other", 2, 4096, 0.02, dim=16)
    for records, words in (
        ([one], "give two runs"),
        ([one, other], "model.dim = '8' in one and '16' in other"),
    ):
        assert main(["cost", "fit", *map(str, records)]) == 2
        told = capsys.readouterr().err
        assert words in told
        assert told.count("\n") == 1


def test_a_record_of_another_layout_is_refused(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "cut", 4, 32, 0.02)
    path = folder / "record.jsonl"
    first, *rest = path.read_text().splitlines()
    for layout, is_plain in (("pp 2 x tp 2", False), ("dp_replicate 4", True)):
        path.write_text("\n".join([json.dumps({**json.loads(first), "layout": layout}), *rest]) + "\n")
        if is_plain:
            assert run_steps(read_record(folder)).ranks == 4
            continue
        with pytest.raises(UserError, match="layout is pp 2 x tp 2; the fit is for data parallelism"):
            run_steps(read_record(folder))


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--batch", "-1"), ("--batch", "0"), ("--ranks", "0"), ("--nodes", "0"), ("--batch", "9" * 18)],
)
def test_numbers_that_cannot_be_are_named(
    flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", "fit", str(tmp_path / "a"), str(tmp_path / "b"), flag, value]) == 2
    assert f"{flag.lstrip('-')} = {value}" in capsys.readouterr().err
