"""The benchmark of time: what is scored was not fitted, or says so; a table is told by its columns."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks import accuracy, accuracy_time
from benchmarks.accuracy_collectives import DATA, collective_scores, read_rows, systems
from benchmarks.accuracy_time import nanotron_runs, run_errors, step_scores
from dtlab.cost.calibration import Calibration, calibration
from dtlab.cost.collective_time import Link
from dtlab.errors import UserError

NANOTRON = read_rows(DATA / "h100-nanotron-runs.csv")


def test_a_system_with_four_sizes_is_not_scored() -> None:
    link = Link(alpha_seconds=2e-5, bytes_per_second=1e11)
    rows = [
        {"system": "x", "n_ranks": "8", "collective": "all_reduce", "size_bytes": str(2**power),
         "time_us": str(link.seconds("all_reduce", 8, 2**power) * 1e6)}
        for power in (18, 20, 22, 24, 26, 33)
    ]  # fmt: skip
    assert collective_scores(rows)[0]["collectives_held_out"] == 0  # only four lie from 1 MiB to 1 GiB
    more = {**rows[0], "size_bytes": str(2**28), "time_us": str(link.seconds("all_reduce", 8, 2**28) * 1e6)}
    figures, scored = collective_scores([*rows, more])
    assert figures["collectives_mape"] == pytest.approx(0.0, abs=1e-9)
    assert [row["bytes"] for row in scored] == [2**22, 2**26]


def test_a_known_system_with_few_new_sizes_is_fitted_on_the_rows_here() -> None:
    rows = read_rows(DATA / "published-collectives.csv")
    name = "1x p5.48xlarge (8xH100 NVLink/NVSwitch)"
    assert any(row["system"] == name for row in rows)
    new = {"system": name, "n_ranks": "8", "collective": "all_reduce", "size_bytes": str(2**26)}
    figures, scored = collective_scores([{**new, "time_us": "326.6"}])
    assert scored == []
    assert 0 < float(figures["collectives_mape"] or 0) < 0.15
    assert figures["collectives_held_out"] == 1
    seen = [row for row in rows if row["system"] == name and row["size_bytes"] == str(2**20)]
    assert collective_scores(seen)[0]["collectives_mape"] is None  # it was fitted on: not scored


def test_a_size_that_is_held_out_does_not_move_the_fit() -> None:
    rows = read_rows(DATA / "published-collectives.csv")
    held = {(row["system"], row["bytes"]) for row in collective_scores(rows)[1]}
    spoiled = [
        {**row, "time_us": str(10 * float(row["time_us"]))}
        if (row["system"], float(row["size_bytes"])) in held
        else row
        for row in rows
    ]
    before, after = (collective_scores(some)[1] for some in (rows, spoiled))
    for first, second in zip(before, after, strict=True):
        assert 1 + float(second["error"] or 0) == pytest.approx((1 + float(first["error"] or 0)) / 10)


@pytest.fixture
def fitted_on(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The models whose rows each fit saw; the fit itself is left out, since it takes a second."""
    seen: list[set[str]] = []

    def no_fit(runs: list[accuracy_time.Run]) -> Calibration:
        seen.append({run.model for run in runs})
        return calibration("H100")

    monkeypatch.setattr(accuracy_time, "fit_calibration", no_fit)
    return seen


def test_a_model_left_out_is_fitted_without_its_rows(fitted_on: list[set[str]]) -> None:
    step_scores(NANOTRON)
    assert fitted_on == [{"3B", "8B"}, {"1B", "8B"}, {"1B", "3B"}]


def test_a_fit_finds_constants_no_worse_than_the_shipped_ones() -> None:
    runs = [run for run in nanotron_runs(NANOTRON) if run.model == "3B"]
    fitted = run_errors(runs, accuracy_time.fit_calibration(runs))
    assert sum(map(abs, fitted)) <= sum(map(abs, run_errors(runs)))


def test_rows_out_of_scope_are_not_scored() -> None:
    runs = nanotron_runs(NANOTRON)
    assert len(runs) == 128
    assert all(run.strategy.pp == 1 and run.strategy.tp <= 8 for run in runs)
    assert all(run.strategy.world_size <= 128 for run in runs)


def test_a_row_that_no_constant_was_fitted_on_is_told_apart(fitted_on: list[set[str]]) -> None:
    scored = [row for row in NANOTRON if row["pp"] == "1" and row["nodes"] == "2" and row["tp"] == "4"][:3]
    new = [{**row, "tokens_per_s": str(float(row["tokens_per_s"]) * 1.01)} for row in scored]
    figures, _ = step_scores([*scored, *new])
    assert figures["step_rows"] == 2 * int(figures["step_rows_fitted_on"] or 0)
    assert figures["step_mape_rows_not_fitted_on"] is not None


def test_tables_are_told_by_their_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = read_rows(DATA / "published-collectives.csv")
    path = tmp_path / "mine.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setattr("sys.argv", ["accuracy", "--runs", str(path), "--json"])
    accuracy.main()
    told = json.loads(capsys.readouterr().out)
    assert told["collectives_mape"] == collective_scores(rows)[0]["collectives_mape"]
    assert told["memory_mape"] is told["step_mape"] is None
    figures = accuracy.time_figures(DATA / "published-runs.csv")
    assert 0 < float(figures["step_mape"] or 0) < 0.10


@pytest.mark.parametrize(
    "change",
    [{"mbs": ""}, {"dp": "x"}, {"tokens_per_s": "nan"}, {"mbs": "9" * 23}, {"gbs_seqs": "1"}],
)  # fmt: skip
def test_row_that_cannot_be_read_is_left_out_alone(change):
    good = [row for row in NANOTRON if nanotron_runs([row])][:2]
    out: list[str] = []
    runs = nanotron_runs([good[0], {**good[0], **change}, good[1]], left_out=out)
    assert [run.row for run in runs] == [tuple(sorted(row.items())) for row in good]
    assert [line.partition(":")[0] for line in out] == ["row 2"]


def test_collectives_that_cannot_be_read_are_left_out_alone():
    good = {
        "system": "a",
        "collective": "all_reduce",
        "n_ranks": "8",
        "size_bytes": "2097152",
        "time_us": "50",
    }
    bad = [{"time_us": "nan"}, {"time_us": "-3"}, {"n_ranks": ""}, {"n_ranks": "1"}, {"size_bytes": "big"}]
    out: list[str] = []
    found = systems([good, *({**good, **change} for change in bad)], out)
    assert found == {("a", 8): [(2097152.0, pytest.approx(50e-6))]}
    assert len(out) == len(bad)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"model,tp\n", "has no rows"),
        (b"model;tp\n1B;1\n", "found model;tp"),
        (b"a,b\n1,2\n", "has no column 'model'"),
        (b"\xff\xfe\x00", "give a CSV file"),
        (None, "No such file"),
    ],
)
def test_table_of_which_nothing_can_be_scored_is_refused(tmp_path, text, said):
    path = tmp_path / "runs.csv"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(UserError, match=said):
        accuracy.main(["--runs", str(path)])
