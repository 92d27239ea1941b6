"""A whole pipeline on two ranks: what is done again and why, what a kill leaves, and what is packaged."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dtlab.cli import main
from dtlab.commands.pipeline import read_pipeline
from dtlab.data.datasets import load_dataset
from dtlab.diagnose.record_file import read_record
from dtlab.train.package import load_package
from dtlab.workflow.engine import look, run

ROOT = Path(__file__).parents[2]
TEXT = """
[data]
name = "clicks"
rows = 2000
root = "{root}"
[model]
dim = 4
hidden = [8]
[optim]
lr = 5e-3
global_batch = 10
max_epochs = 2
patience = 2
[checkpoint]
every_steps = 40
[run]
check_replicas_every = 0
[pipeline]
folder = "{folder}"
requests = 20
warmup = 2
batch = 8
"""


def write(place: Path, root: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    file = place / "pipeline.toml"
    file.write_text(TEXT.format(root=root, folder=place / "out"))
    return file


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, root):
    """The pipeline's file, and what its first run said as JSON."""
    file = write(tmp_path_factory.mktemp("whole"), root)
    done = subprocess.run(
        [sys.executable, "-m", "dtlab.cli", "pipeline", "run", str(file), "--json"],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return file, json.loads(done.stdout)


def actions(found):
    return [each.action for each in found]


def folders(said):
    return {each["step"]: Path(each["folder"]) for each in said["steps"]}


def test_first_run_does_every_step_and_the_ranks_read_what_the_features_step_wrote(whole):
    _, said = whole
    assert [each["action"] for each in said["steps"]] == ["run"] * 5
    trained = next(each["facts"] for each in said["steps"] if each["step"] == "train")
    assert trained["world_size"] == 2
    assert trained["cache"] == {"kind": "disk", "hits": 4, "misses": 0, "rebuilds": 0, "waits": 0}
    assert said["auc"] == pytest.approx(trained["auc"], abs=1e-6)
    rows = json.loads((folders(said)["prepare"] / "data.json").read_text())["rows"]
    assert rows["train"] + rows["validation"] == trained["rows_train"]
    assert sum(rows.values()) == 2000
    for name, rows in (("request", 1), ("batch", 8), ("model", 1)):
        each = said["latency"][name]
        assert (each["rows"], each["requests"], each["warmup"]) == (rows, 20, 2)
        assert 0 < each["p50_ms"] <= each["p95_ms"]
    assert json.loads((folders(said)["train"].parents[1] / "summary.json").read_text()) == said


def test_nothing_is_done_twice(whole, capsys):
    file, said = whole
    before = Path(said["archive"]).stat().st_mtime_ns
    assert main(["pipeline", "run", str(file), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [(each["action"], each["seconds"]) for each in again["steps"]] == [("skip", 0.0)] * 5
    assert (again["auc"], again["archive"]) == (said["auc"], said["archive"])
    assert Path(said["archive"]).stat().st_mtime_ns == before


def test_change_reaches_the_steps_that_depend_on_it_and_says_its_name(whole):
    pipeline = read_pipeline(whole[0])
    train = pipeline.train
    quiet = replace(train, run=replace(train.run, log_every=7), checkpoint=replace(train.checkpoint, keep=5))
    assert actions(look(replace(pipeline, train=quiet))) == ["skip"] * 5
    faster = look(replace(pipeline, train=replace(train, optim=replace(train.optim, lr=1e-3))))
    assert actions(faster) == ["skip", "skip", "run", "wait", "wait"]
    assert faster[2].reason == "changed: optim.lr 0.005 -> 0.001"
    sizes = look(replace(pipeline, options=replace(pipeline.options, batch=16)))
    assert actions(sizes) == ["skip", "skip", "skip", "run", "wait"]
    more = look(replace(pipeline, train=replace(train, data=replace(train.data, rows=3000))))
    assert actions(more) == ["run", "wait", "wait", "wait", "wait"]
    assert more[0].reason == "changed: raw data, data.rows 2000 -> 3000"
    ranks = look(replace(pipeline, options=replace(pipeline.options, nproc=1)))
    assert ranks[2].reason == "changed: pipeline.nproc 2 -> 1"


def test_other_code_or_package_is_a_change(whole, monkeypatch):
    from dtlab.workflow import inputs

    pipeline, real = read_pipeline(whole[0]), inputs.code_digest
    monkeypatch.setattr(inputs, "code_digest", lambda part: "new" if part == "models" else real(part))
    found = look(pipeline)
    assert actions(found) == ["skip", "skip", "run", "wait", "wait"]
    assert found[2].reason == "changed: code of dtlab/models"
    monkeypatch.undo()
    monkeypatch.setattr(inputs, "_version", lambda name: "9.9")
    assert look(pipeline)[0].reason.startswith("changed: version of numpy ")


def test_step_that_leaves_the_same_output_again_stops_the_change_there(whole):
    lines = []
    found = run(read_pipeline(whole[0]), again="features", tell=lines.append)
    assert actions(found.steps) == ["skip", "run", "skip", "skip", "skip"]
    assert lines[1].split(None, 2)[2] == "asked for with --again"


def test_output_that_somebody_changed_is_made_again(whole):
    file, said = whole
    (folders(said)["evaluate"] / "metrics.json").write_text("{}")
    found = look(read_pipeline(file))
    assert found[3].action == "run"
    assert found[3].reason == "output metrics.json is not what the step wrote"
    again = run(read_pipeline(file), tell=lambda line: None)
    assert actions(again.steps)[:4] == ["skip", "skip", "skip", "run"]
    assert again.facts("evaluate")["auc"] == said["auc"]


def test_model_that_falls_short_is_not_packaged(whole, tmp_path, capsys):
    file = tmp_path / "strict.toml"
    file.write_text(whole[0].read_text() + "least_auc = 0.99\n")
    assert main(["pipeline", "run", str(file), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [each["action"] for each in said["steps"]] == ["skip", "skip", "skip", "skip", "refused"]
    assert said["archive"] is None
    assert "is below pipeline.least_auc = 0.99" in said["missed"][0]


def test_archive_serves_by_itself_the_scores_of_the_trained_model(whole, tmp_path):
    file, said = whole
    with tarfile.open(said["archive"]) as archive:
        archive.extractall(tmp_path, filter="data")
    rows = pq.read_table(folders(said)["prepare"] / "requests.parquet").slice(0, 5)
    body = json.dumps({"rows": rows.to_pylist()})
    code = (
        "import inference, sys; served = inference.model_fn('.');"
        "rows = inference.input_fn(sys.argv[1], 'application/json');"
        "print(inference.output_fn(inference.predict_fn(rows, served), 'application/json'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, body],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "code")},
    )
    assert done.returncode == 0, done.stderr
    package = load_package(folders(said)["train"] / "run")
    test = load_dataset(read_pipeline(file).train.data).refit().test
    logits = package.model(test.categorical[:5], test.dense[:5]).detach().double()
    assert json.loads(done.stdout)["scores"] == pytest.approx(logits.sigmoid().tolist(), abs=1e-6)


def test_killed_pipeline_goes_on_from_the_checkpoint_to_the_same_model(whole, root, tmp_path):
    file = write(tmp_path, root)
    words = [sys.executable, "-m", "dtlab.cli", "pipeline", "run", str(file)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.Popen(
        words, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    limit = time.monotonic() + 200
    while not list((tmp_path / "out").glob("train/*/run/checkpoints/save-*")):
        assert killed.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.005)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(timeout=30)
    found = run(read_pipeline(file), echo=False, tell=lambda line: None)
    assert actions(found.steps) == ["skip", "skip", "resume", "run", "run"]
    assert "goes on from step" in found.steps[2].reason
    place = found.steps[2].folder / "run"
    assert [event.kind for event in read_record(place).events].count("resume") == 1
    other = folders(whole[1])["train"] / "run"
    weights = [(each / "model" / "model.safetensors").read_bytes() for each in (place, other)]
    assert weights[0] == weights[1]
