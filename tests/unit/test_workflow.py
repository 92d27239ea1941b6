"""A pipeline's file and the packaged model's requests: what is wrong with them is one line."""

import fcntl
import json
import math

import pyarrow as pa
import pytest
import torch

from dtlab.cli import main
from dtlab.data.features import Features, FeatureSpec
from dtlab.errors import UserError
from dtlab.models.deepfm import DeepFM
from dtlab.train.config import TrainConfig
from dtlab.train.package import Package
from dtlab.workflow.config import Pipeline, PipelineConfig
from dtlab.workflow.latency import measure
from dtlab.workflow.serving import columns_of, input_fn, model_fn, output_fn, predict_fn, serve
from dtlab.workflow.steps import missed
from dtlab.workflow.store import Store

TABLE = pa.table(
    {"city": ["a", "b", None, "a"], "x": [1.0, 2.0, 3.0, 6.0], "n": [1, 2, 3, 4], "y": [0, 1, 0, 1]}
)


@pytest.fixture
def served():
    spec = FeatureSpec(categorical=("city",), numeric=("x", "n"), label="y")
    features = Features.fit(TABLE, spec)
    torch.manual_seed(0)
    model = DeepFM(features.cardinalities, features.num_dense, dim=2, hidden=(4,)).eval()
    package = Package(model, features, TrainConfig(), {})
    return serve(package, columns_of(spec.inputs(), TABLE.schema))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[pipeline]\nnprocs = 2\n", ["'nprocs' in [pipeline]", "did you mean pipeline.nproc?"]),
        ("[pipeline]\nnproc = 0\n", ["pipeline.nproc = 0", "give 1 to"]),
        ("[pipeline]\nnproc = true\n", ["pipeline.nproc = True", "whole number"]),
        ("[pipeline]\nleast_auc = 70\n", ["pipeline.least_auc = 70", "between 0 and 1"]),
        ("[pipeline]\nmost_request_ms = 0\n", ["pipeline.most_request_ms = 0", "above 0"]),
        ("pipeline = 3\n", ["pipeline = 3", "[pipeline] on a line"]),
        ("[optim]\nlrr = 1\n", ["'lrr' in [optim]", "did you mean optim.lr?"]),
        ("[data]\nname = 'text'\n", ["data.name = 'text'", "dtlab train"]),
        ("[data]\ncache_max_age_hours = 24\n", ["data.cache_max_age_hours", "leave it out"]),
        ("[run]\nfolder = 'here'\n", ["run.folder = 'here'", "leave it out"]),
        ("[data]\nname = 'parquet'\npath = 'none.parquet'\n", ["data.path = 'none.parquet'", "no such file"]),
        ("[tune]\nx = 1\n", ["unknown table or key 'tune'"]),
    ],
)
@pytest.mark.parametrize("command", ["run", "status"])
def test_file_that_is_wrong_is_one_line(command, text, words, tmp_path, capsys):
    file = tmp_path / "pipeline.toml"
    folder = f"folder = '{tmp_path}/out'\n"
    with_folder = text.replace("[pipeline]\n", f"[pipeline]\n{folder}")
    file.write_text(with_folder if "pipeline" in text else f"{text}[pipeline]\n{folder}")
    assert main(["pipeline", command, str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert all(word in captured.err for word in words), captured.err
    assert not (tmp_path / "out").exists() or command == "run"


def test_folder_of_another_pipeline_that_runs_is_refused(tmp_path, capsys):
    file = tmp_path / "pipeline.toml"
    file.write_text(f"[data]\nname = 'clicks'\n[pipeline]\nfolder = '{tmp_path}'\n")
    with (tmp_path / ".lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert main(["pipeline", "run", str(file)]) == 2
    assert "another dtlab pipeline run is in it" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "status"])
def test_folder_that_is_a_file_is_refused_before_anything_is_read(command, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    file = tmp_path / "pipeline.toml"
    file.write_text(f"[data]\nname = 'clicks'\n[pipeline]\nfolder = '{tmp_path}/file'\n")
    assert main(["pipeline", command, str(file)]) == 2
    assert "pipeline.folder" in capsys.readouterr().err


def test_cache_is_on_disk_whatever_the_file_says():
    assert Pipeline.from_dict({"data": {"name": "clicks", "cache": "memory"}}).train.data.cache == "disk"


def test_step_is_done_only_while_its_outputs_are_what_it_wrote(tmp_path):
    store, inputs = Store(tmp_path), {"a": 1}
    assert store.find("prepare", inputs) == (None, None)
    place = store.place("prepare", inputs)
    place.mkdir(parents=True)
    assert store.find("prepare", inputs) == (None, "was not finished")
    (place / "out.txt").write_text("one")
    done = store.finish("prepare", inputs, ("out.txt",), {"rows": 3}, seconds=1.0)
    assert store.find("prepare", inputs) == (done, None)
    (place / "out.txt").write_text("two")
    assert store.find("prepare", inputs)[1] == "output out.txt is not what the step wrote"
    (place / "out.txt").unlink()
    assert store.find("prepare", inputs)[1] == "output out.txt is missing"


@pytest.mark.parametrize(
    "edit",
    [
        {"facts": {}},
        {"outputs": {"a\0": ""}},
        {"outputs": {"../x": ""}},
        {"elsewhere": [5]},
        {"finished": None},
    ],
)
def test_step_file_that_was_edited_is_a_step_that_was_not_finished(edit, tmp_path):
    store = Store(tmp_path)
    store.place("prepare", {}).mkdir(parents=True)
    store.finish("prepare", {}, (), {"auc": math.nan}, seconds=1.0)
    assert store.find("prepare", {})[1] is None
    mark = store.place("prepare", {}) / "step.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | edit))
    assert store.find("prepare", {}) == (None, "was not finished")


def test_step_whose_place_is_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "train").write_text("")
    with pytest.raises(UserError, match=r"pipeline\.folder.*is a file"):
        Store(tmp_path).forget("train", {})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', '{"format": 1, "outputs": {"../x": ""}}'])
def test_torn_or_foreign_step_file_is_a_step_that_was_not_finished(text, tmp_path):
    store = Store(tmp_path)
    place = store.place("prepare", {})
    place.mkdir(parents=True)
    (place / "step.json").write_text(text)
    assert store.find("prepare", {}) == (None, "was not finished")
    assert store.newest("prepare") is None


def test_scores_of_requests_are_those_of_the_model(served):
    rows = [
        {"city": "a", "x": 1.0, "n": 1},
        {"city": None, "x": None},
        {"city": "new", "x": 2, "n": 7, "z": 1},
    ]
    found = json.loads(output_fn(predict_fn(input_fn(json.dumps({"rows": rows})), served)))["scores"]
    table = pa.table({"city": ["a", None, "new"], "x": [1.0, None, 2.0], "n": pa.array([1, None, 7])})
    batch = served.features.transform(table)
    expected = served.package.model(batch.categorical, batch.dense).double().sigmoid()
    assert found == pytest.approx(expected.tolist())
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "one row or more"),
        ('{"rows": []}', "one row or more"),
        ("[1]", "one row or more"),
        ('[{"x": "text"}]', "column 'x' is double"),
        ('[{"n": 1.5}]', "column 'n' is int64"),
        ('[{"city": 3}]', "column 'city' is string"),
    ],
)
def test_request_that_is_wrong_is_one_line(body, words, served):
    with pytest.raises(UserError, match=words) as error:
        predict_fn(input_fn(body), served)
    assert "\n" not in str(error.value)


def test_other_content_type_and_other_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match="application/json"):
        input_fn("x,y", "text/csv")
    with pytest.raises(UserError, match=r"inputs\.json"):
        model_fn(str(tmp_path))


def test_column_that_json_has_no_values_for_is_refused(served):
    schema = TABLE.schema.set(1, pa.field("x", pa.timestamp("ms")))
    with pytest.raises(UserError, match="column 'x' is timestamp"):
        columns_of(served.features.spec.inputs(), schema)


def test_score_that_is_no_number_is_null():
    assert output_fn([0.5, math.nan]) == '{"scores": [0.5, null]}'


def test_warm_up_is_not_timed_and_percentiles_are_times_that_were_measured():
    asked = []
    found = measure(asked.append, [str(number) for number in range(25)], rows=4, warmup=5)
    assert asked == [str(number) for number in range(25)]
    assert (found.requests, found.warmup, found.rows) == (20, 5, 4)
    assert found.rows_per_second == pytest.approx(4 / (found.mean_ms / 1e3))


@pytest.mark.parametrize(
    ("auc", "options", "words"),
    [
        (0.7, {"least_auc": 0.7}, []),
        (0.69, {"least_auc": 0.7}, ["test AUC 0.6900 is below"]),
        (None, {"least_auc": 0.7}, ["not a number"]),
        (0.9, {"most_request_ms": 2.0}, ["p95 of a request is 3.00 ms"]),
        (None, {}, []),
    ],
)
def test_limits_are_looked_at_one_by_one(auc, options, words):
    facts = {"auc": auc, "latency": {"request": {"p95_ms": 3.0}}}
    found = missed(facts, PipelineConfig(**options))
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))
