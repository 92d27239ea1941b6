"""Your own Parquet from the command line: train on two ranks, then score the file with the trained model."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dtlab.cli import main
from dtlab.data.evaluate import ById
from dtlab.errors import UserError
from dtlab.train.metrics import binary_auc

ROWS = 6_000


@pytest.fixture(scope="module")
def parquet(tmp_path_factory) -> Path:
    """Strings with nulls, numbers with nulls, and a shop that only test rows have."""
    rng = np.random.default_rng(5)
    shop = rng.integers(0, 12, ROWS)
    price = rng.normal(20, 5, ROWS)
    chance = 1 / (1 + np.exp(-(0.4 * (shop % 4) - 0.15 * (price - 20))))
    label = (rng.random(ROWS) < chance).astype(np.int64)
    split = rng.choice(["train", "validation", "test"], ROWS, p=[0.7, 0.15, 0.15])
    names = [None if i % 17 == 0 else f"shop {s}" for i, s in enumerate(shop)]
    test_rows = np.flatnonzero(split == "test")
    for row in test_rows[:40]:
        names[row] = "opened yesterday"
    prices = [None if i % 23 == 0 else float(p) for i, p in enumerate(price)]
    path = tmp_path_factory.mktemp("parquet") / "sales.parquet"
    columns = {"row": np.arange(ROWS) * 3 + 7, "shop": names, "price": prices, "bought": label, "part": split}
    pq.write_table(pa.table(columns), path)
    return path


def flags(parquet: Path, folder: Path) -> list[str]:
    words = [
        "--data.name",
        "parquet",
        "--data.path",
        str(parquet),
        "--data.label",
        "bought",
        "--data.id",
        "row",
    ]
    words += ["--data.categorical", "shop", "--data.numeric", "price", "--data.split", "part"]
    words += [
        "--model.dim",
        "4",
        "--model.hidden",
        "16",
        "--optim.global-batch",
        "256",
        "--optim.max-epochs",
        "2",
    ]
    return [*words, "--run.output", str(folder / "runs"), "--data.root", str(folder / "data")]


def test_predict_gives_the_scores_that_evaluation_used(parquet, tmp_path, capsys):
    report_file, scores_file = tmp_path / "report.json", tmp_path / "scores.parquet"
    assert main(["train", *flags(parquet, tmp_path), "--nproc", "2", "--report", str(report_file)]) == 0
    report = json.loads(report_file.read_text())
    assert report["unique_rows_seen"] == report["rows_train"]
    assert main(["predict", report["run"], str(parquet), "--output", str(scores_file)]) == 0
    assert f"{ROWS:,} rows scored" in capsys.readouterr().out

    source, scores = pq.read_table(parquet), pq.read_table(scores_file)
    assert sorted(scores["id"].to_pylist()) == source["row"].to_pylist()
    by_id = dict(zip(scores["id"].to_pylist(), scores["score"].to_pylist(), strict=True))
    rows = [r for r in source.to_pylist() if r["part"] == "test"]
    test_scores = torch.tensor([by_id[r["row"]] for r in rows], dtype=torch.float64)
    labels = torch.tensor([float(r["bought"]) for r in rows])
    assert len(rows) == report["rows_test"]
    assert binary_auc(test_scores, labels) == pytest.approx(report["auc"], abs=1e-9)
    assert report["auc"] > 0.6


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--data.categorical", "shopp"], ["shopp", "shop"]),
        (["--data.label", "part"], ["part"]),
        (["--data.path", "/nowhere/x.parquet"], ["/nowhere/x.parquet"]),
        (["--data.split", "price"], ["price"]),
    ],
)
def test_wrong_column_is_one_line_and_code_2(parquet, tmp_path, capfd, change, named):
    words = flags(parquet, tmp_path)
    at = words.index(change[0])
    words[at + 1] = change[1]
    assert main(["train", *words, "--nproc", "2"]) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert all(word in lines[0] for word in named), lines


def test_empty_parquet_is_one_line_and_code_2(parquet, tmp_path, capfd):
    empty = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(parquet).slice(0, 0), empty)
    assert main(["train", *flags(empty, tmp_path)]) == 2
    assert "empty.parquet" in capfd.readouterr().err


def test_prediction_without_a_column_names_it(parquet, tmp_path, capfd):
    report_file = tmp_path / "report.json"
    words = [*flags(parquet, tmp_path), "--run.max-steps", "2"]
    assert main(["train", *words, "--report", str(report_file)]) == 0
    less = tmp_path / "less.parquet"
    pq.write_table(pq.read_table(parquet).drop_columns(["price"]), less)
    capfd.readouterr()
    code = main(
        ["predict", json.loads(report_file.read_text())["run"], str(less), "--output", str(tmp_path / "s")]
    )
    assert code == 2
    assert "price" in capfd.readouterr().err
    assert not (tmp_path / "s").exists()


def test_prediction_without_the_id_column_is_refused_unless_row_numbers_are_asked_for(
    parquet, tmp_path, capfd
):
    report_file, scores = tmp_path / "report.json", tmp_path / "scores.parquet"
    words = [*flags(parquet, tmp_path), "--run.max-steps", "2"]
    assert main(["train", *words, "--report", str(report_file)]) == 0
    run = json.loads(report_file.read_text())["run"]
    nameless = tmp_path / "nameless.parquet"
    pq.write_table(pq.read_table(parquet).drop_columns(["row"]), nameless)
    capfd.readouterr()
    assert main(["predict", run, str(nameless), "--output", str(scores)]) == 2
    err = capfd.readouterr().err
    assert "'row'" in err
    assert "--row-numbers" in err
    assert not scores.exists()
    assert main(["predict", run, str(nameless), "--output", str(scores), "--row-numbers"]) == 0
    assert pq.read_table(scores)["id"].to_pylist() == list(range(ROWS))


def test_prediction_never_writes_over_its_rows_and_never_writes_nan(parquet, tmp_path, capfd):
    report_file, rows = tmp_path / "report.json", tmp_path / "rows"
    words = [*flags(parquet, tmp_path), "--run.max-steps", "2"]
    assert main(["train", *words, "--report", str(report_file)]) == 0
    run = json.loads(report_file.read_text())["run"]
    rows.mkdir()
    shard = rows / "part.parquet"
    shard.write_bytes(parquet.read_bytes())
    (tmp_path / "link.parquet").symlink_to(shard)

    def refusal(*words: str) -> str:
        capfd.readouterr()
        assert main(["predict", run, *words]) == 2
        return capfd.readouterr().err

    assert "is the file to be scored" in refusal(str(shard), "--output", str(shard))
    assert "is the file to be scored" in refusal(str(shard), "--output", str(tmp_path / "link.parquet"))
    assert "lies in the folder" in refusal(str(rows), "--output", str(rows / "scores.parquet"))
    assert "batch = 0" in refusal(str(shard), "--output", str(tmp_path / "s"), "--batch", "0")
    assert shard.read_bytes() == parquet.read_bytes()
    assert [entry.name for entry in rows.iterdir()] == ["part.parquet"]

    def score(model, table, **_):
        return ById(torch.arange(2), {"logits": torch.tensor([0.5, math.nan]), "labels": torch.zeros(2)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dtlab.train.predict.score", score)
        assert "1 of 2 scores are not numbers" in refusal(str(shard), "--output", str(tmp_path / "s"))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "batch", ["256", "100000"]
)  # the loss of a later step is nan, or only the scores are
def test_run_whose_model_leaves_the_numbers_fails_with_step_and_rate(parquet, tmp_path, capfd, batch):
    words = [*flags(parquet, tmp_path), "--optim.lr", "1e30"]
    words[words.index("--optim.global-batch") + 1] = batch
    assert main(["train", *words]) == 2
    err = capfd.readouterr().err
    assert "step " in err
    assert "Traceback" not in err
    assert "optim.lr = 1e+30" in err


def test_summary_is_printed_when_the_report_cannot_be_written(parquet, tmp_path, capfd, monkeypatch):
    def fails(*_):
        raise UserError("report = 'r': No space left on device")

    monkeypatch.setattr("dtlab.train.record.write_json", fails)
    words = [*flags(parquet, tmp_path), "--run.max-steps", "2", "--report", str(tmp_path / "r")]
    assert main(["train", *words]) == 2
    captured = capfd.readouterr()
    assert "samples seen" in captured.out
    assert "No space left" in captured.err
