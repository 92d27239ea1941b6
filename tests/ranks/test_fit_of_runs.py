"""``dtlab cost fit`` reads what real runs on one and on two ranks wrote."""

import json

import pytest

from dtlab.cli import main


def train(folder, data, ranks, batch):
    words = (
        f"train --nproc {ranks} --data.name clicks --data.rows 4000 --data.root {data} --model.hidden 8 "
        f"--optim.global-batch {batch} --run.max-steps 24 --run.log-every 3 --run.folder {folder}"
    )
    assert main(words.split()) == 0
    return str(folder)


def test_runs_on_one_and_two_ranks_are_fitted_and_predict_a_larger_batch(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    runs = [train(tmp_path / f"on-{ranks}", tmp_path / "data", ranks, 128) for ranks in (1, 2)]
    capsys.readouterr()
    assert main(["cost", "fit", *runs, "--ranks", "2", "--ranks", "4", "--batch", "512", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    one, two = told["runs"]
    assert [(run["ranks"], run["global_batch"], run["threads"]) for run in (one, two)] == [
        (1, 128, 1),
        (2, 128, 1),
    ]
    assert one["communication_seconds"] == 0.0 < two["communication_seconds"] < two["step_seconds"]
    assert told["fit"]["per_sample_seconds"] >= 0 <= told["fit"]["fixed_seconds"]
    larger, four = told["predictions"]
    assert larger["communication_seconds"] == pytest.approx(two["communication_seconds"])
    assert larger["compute_seconds"] > 0
    assert larger["step_seconds"] == pytest.approx(512 / larger["samples_per_second"])
    assert any("follows a ring fitted to 2" in note for note in four["notes"])
