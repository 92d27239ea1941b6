"""A table of one's own, however it was written: the same rows give the same figures, bad cells are named."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import accuracy, accuracy_time
from benchmarks.accuracy_collectives import systems
from benchmarks.accuracy_time import nanotron_runs, run_errors
from benchmarks.measured_memory import read_runs
from benchmarks.measured_time import card_of
from benchmarks.run_table import MEMORY, number, read_rows
from benchmarks.shapes import parameters
from dtlab.cost.calibration import calibration
from dtlab.errors import UserError

NANO = "model,gpu,seq_len,n_gpus,nodes,dp,tp,pp,zero,mbs,grad_accum,gbs_seqs,tokens_per_s,gpu_mem_gib,notes"
ROWS = [
    ["1B", "H100", "4096", "8", "1", "8", "1", "1", "0", "2", "16", "256", "301025", "41.5", "a, b"],
    ["8B", "H100", "4096", "64", "8", "8", "8", "1", "1", "4", "8", "256", "202025", "31.25", ""],
    ["3B", "H100", "8192", "16", "2", "2", "2", "4", "1", "2", "64", "256", "98765", "40.25", ""],
]
Figures = dict[str, float | None]
Scored = Callable[[bytes | str], tuple[Figures, str]]


@pytest.fixture
def score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Scored:
    def scored(table: bytes | str) -> tuple[Figures, str]:
        path = tmp_path / "runs.csv"
        path.write_bytes(table if isinstance(table, bytes) else table.encode())
        monkeypatch.setattr(
            accuracy_time, "fit_calibration", lambda runs: calibration("H100")
        )  # takes a second
        monkeypatch.setattr("sys.argv", ["accuracy", "--runs", str(path), "--json"])
        accuracy.main()
        printed = capsys.readouterr()
        return json.loads(printed.out), printed.err

    return scored


def table(names: list[str], rows: list[list[str]], end: str = "\n", quoting: int = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator=end, quoting=quoting).writerows([names, *rows])  # type: ignore[arg-type]
    return text.getvalue()


def written_in_other_ways() -> dict[str, bytes | str]:
    names, turned = NANO.split(","), [*range(14, -1, -1)]
    plain = table(names, ROWS)
    return {
        "another order": table([names[i] for i in turned], [[row[i] for i in turned] for row in ROWS]),
        "other columns": table([*names, "more"], [[*row, "two lines\n# in a cell\n\n"] for row in ROWS]),
        "byte order mark": b"\xef\xbb\xbf" + plain.encode(),
        "CRLF": table(names, ROWS, "\r\n"),
        "CR": table(names, ROWS, "\r"),
        "quoted": table(names, ROWS, quoting=csv.QUOTE_ALL),
        "spaces": table([f" {one} " for one in names], [[f" {cell}  " for cell in row] for row in ROWS]),
        "capitals": table([one.upper() for one in names], ROWS),
        "whole numbers as floats": table(
            names, [[f"{cell}.0" if cell.isdigit() else cell for cell in row] for row in ROWS]
        ),
        "thousands": table(
            names, [[f"{int(cell):,}" if cell.isdigit() else cell for cell in row] for row in ROWS]
        ),
        "units": table(
            names,
            [
                [*row[:2], f"{int(row[2]) // 1024}k", *row[3:12], f"{row[12]} tokens/s", f"{row[13]} GiB", ""]
                for row in ROWS
            ],
        ),
        "MiB": table(names, [[*row[:13], f"{float(row[13]) * 1024} MiB", ""] for row in ROWS]),
        "notes and blank lines": '# of "mine, unbalanced\n\n' + plain.replace("\n", "\n\n# note, note\n", 2),
        "no dp": table([*names[:5], *names[6:]], [[*row[:5], *row[6:]] for row in ROWS]),
        "no batch": table([*names[:11], *names[12:]], [[*row[:11], *row[12:]] for row in ROWS]),
        "no nodes": table([*names[:4], *names[5:]], [[*row[:4], *row[5:]] for row in ROWS]),
    }


@pytest.mark.parametrize("way", written_in_other_ways())
def test_the_same_rows_give_the_same_figures(score: Scored, way: str) -> None:
    wanted, _ = score(table(NANO.split(","), ROWS))
    found, said = score(written_in_other_ways()[way])
    assert found == pytest.approx(wanted)
    assert (wanted["memory_rows"], wanted["memory_rows_pp"], wanted["step_rows"]) == (2, 1, 2)
    assert "left out" not in said


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("tp", "two", "tp = 'two': give a number"),
        ("tp", "1.5", "tp = '1.5': give a whole number"),
        ("mbs", "NaN", "mbs = 'NaN': give a number"),
        ("seq_len", "4096 pixels", "seq_len = '4096 pixels'"),
        ("gpu_mem_gib", "41.8 GB", "alone or in GiB"),
        ("gpu_mem_gib", "41,8", "gpu_mem_gib = '41,8'"),
        ("gpu_mem_gib", "-3", "gpu_mem_gib = '-3': give the GiB of one card"),
        ("gpu_mem_gib", "42496", "gpu_mem_gib = '42496': give the GiB of one card"),
        ("tokens_per_s", "inf", "tokens_per_s = 'inf'"),
        ("zero", "four", "sharding = 'four' is unknown"),
        ("n_gpus", "\u0663", "n_gpus = '\u0663'"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line_and_the_rest_is_scored(
    score: Scored, column: str, cell: str, said: str
) -> None:
    names = NANO.split(",")
    bad = [cell if name == column else old for name, old in zip(names, ROWS[0], strict=True)]
    figures, lines = score(table(names, [ROWS[1], bad, ROWS[2]]))
    wanted, _ = score(table(names, ROWS[1:]))
    assert said in next(line for line in lines.splitlines() if "line 3" in line)
    of = "step_mape" if column in ("tokens_per_s",) else "memory_mape"
    assert figures[of] == pytest.approx(wanted[of])


def test_a_row_whose_columns_have_moved_is_left_out(score: Scored) -> None:
    figures, lines = score(table(NANO.split(","), [ROWS[1], ROWS[2]]) + ",".join(ROWS[0]) + "\n")
    assert "line 4: has 16 cells, the header 15: put a cell that holds a comma in quotes" in lines
    assert figures["memory_rows"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model,tp,tp\n1B,1,2\n", "two columns are named 'tp'"),
        ("model,mbs\n1B,1\n", "no column of what was measured"),
        ("model,mbs,gpu_mem_gib\n1B,x,30\n", "no row can be scored"),
        ("model,mbs,gpu_mem_gib\n1B,1,\n", "no row can be scored"),
    ],
)
def test_a_table_without_a_row_to_score_is_refused(score: Scored, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        score(text)


def test_what_is_taken_for_want_of_a_column_is_said(score: Scored) -> None:
    _, said = score("model,n_gpus,mbs,gpu_mem_gib\n1B,8,1,30\n")
    assert "taken for want of a column: tp = 1, pp = 1, no sharding" in said
    assert "dp = 1" not in said


def test_time_follows_length_sharding_card_and_shape_of_the_row(tmp_path: Path) -> None:
    names = NANO.split(",")
    shape = {"layers": "16", "hidden": "2048", "ffn": "8192", "heads": "32", "vocab": "131072", "tied": "yes"}
    changes: list[dict[str, str]] = [
        {}, {"seq_len": "8192"}, {"gpu": "A100-80GB"}, {"zero": "ZeRO-1"}, {"zero": "3"},
        {"model": "mine", **shape},
    ]  # fmt: skip
    path, row = tmp_path / "runs.csv", dict(zip(names, ROWS[0], strict=True))
    made = [{**row, **one} for one in changes]
    columns = [*names, *shape]
    path.write_text(table(columns, [[one.get(name, "") for name in columns] for one in made]))
    runs = nanotron_runs(read_rows(path))
    same, longer, older, zero1, fsdp, mine = run_errors(runs)
    assert runs[1].seconds == 2 * runs[0].seconds
    assert longer != same
    assert older > same, "an A100 takes longer for the same tokens"
    assert [run.strategy.zero for run in runs] == [0, 0, 0, 1, 3, 0]
    assert len({same, zero1, fsdp}) == 3
    assert mine == pytest.approx(same)


def test_sizes_in_columns_that_contradict_the_name_are_refused(tmp_path: Path) -> None:
    head = "model,params,layers,hidden,ffn,heads,vocab,mbs,gpu_mem_gib\n"
    for cells, said in (
        ("8B,,10,,,,,1,30", "layers = 10: not the model known as '8B'"),
        ("mine,70B,16,2048,8192,32,32000,1,30", "params = '70B' of 'mine'"),
        ("mine,1.2.3,16,2048,8192,32,32000,1,30", "params = '1.2.3'"),
        ("mine,,100000,2048,8192,32,32000,1,30", "layers = 100000: give that of a real model"),
    ):
        (tmp_path / "runs.csv").write_text(head + cells + "\n")
        runs, (line,) = read_runs(tmp_path / "runs.csv")
        assert runs == []
        assert said in line


def test_a_llama_in_a_table_of_nanotron_is_not_nanotrons_model(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("model,mbs,gpu_mem_gib\nLlama 3.1 8B,1,70\nLlama-like 8B,1,70\n")
    llama, like = (run.model for run in read_runs(tmp_path / "runs.csv")[0])
    assert (llama.kv_heads, like.kv_heads) == (8, 32)


def test_a_value_with_its_unit_stands_for_a_blank_peak(tmp_path: Path) -> None:
    head = "model,mbs,measured_value,unit,measured_GiB\n"
    (tmp_path / "runs.csv").write_text(head + "1B,1,43008,MiB,\n1B,1,43008,MiB,41\n1B,1,64.424509,GB,\n")
    runs, _ = read_runs(tmp_path / "runs.csv")
    assert [run.measured_bytes / 2**30 for run in runs] == pytest.approx([42, 41, 60])


def test_numbers_of_parameters() -> None:
    assert [parameters(text) for text in ("8,030,261,248", "1.3T", "~7b", "7e9")] == [
        8030261248,
        1.3e12,
        7e9,
        7e9,
    ]
    with pytest.raises(UserError, match="params = 'many'"):
        parameters("many")


def test_a_number_is_what_it_says_or_an_error() -> None:
    assert number({"mem": "2048 KiB"}, "mem", units=MEMORY) == pytest.approx(2 / 1024)
    for text in ("1,5", "0x10", "1/2", "1;2", "\u0663", "1e999", "=1+1", "--1"):
        with pytest.raises(UserError, match="n = "):
            number({"n": text}, "n")


def test_a_card_is_told_by_its_whole_name() -> None:
    known = {
        "H100-SXM-80GB": "H100",
        "nvidia h200": "H200",
        "GB200 NVL72": None,
        "GH200": None,
        "RTX A1000": None,
    }
    assert {name: card_of({"gpu": name}) for name in known} == known


def test_an_all_reduce_may_be_spelled_otherwise() -> None:
    row = {
        "system": "a",
        "collective": "AllReduce",
        "n_ranks": "8.0",
        "size_bytes": "64 MiB",
        "time_us": "1.5 ms",
    }
    assert systems([row]) == {("a", 8): [(2**26, pytest.approx(1.5e-3))]}
