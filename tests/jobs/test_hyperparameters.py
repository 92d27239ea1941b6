"""Hyper-parameters arrive as text: "False" is false, text stays text, and what fits nothing is named."""

import json

import pytest

from dtlab.errors import UserError
from dtlab.sagemaker.hyperparameters import encode, from_environment, read
from dtlab.sagemaker.script import train_config

KINDS = {"amp": bool, "resume": bool, "epochs": int, "lr": float, "layers": list, "note": str}


def test_each_text_becomes_the_kind_of_its_field():
    texts = {"amp": "False", "resume": "true", "epochs": "3", "lr": "1e-3", "layers": "[1, 2]"}
    values = read(texts, KINDS)
    assert values == {"amp": False, "resume": True, "epochs": 3, "lr": 0.001, "layers": [1, 2]}
    assert type(values["epochs"]) is int


def test_word_that_is_no_boolean_is_refused_with_those_that_are():
    with pytest.raises(UserError, match=r"amp = 'maybe': give one of true, 1, yes, on, false, 0, no, off"):
        read({"amp": "maybe"}, KINDS)


@pytest.mark.parametrize("text", ["some text", '"some text"'])
def test_text_that_is_no_json_is_text_with_and_without_quotes(text, capsys):
    assert read({"note": text}, KINDS) == {"note": "some text"}
    assert read({"other": text}, KINDS) == {"other": "some text"}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("given", [10, "10"])
def test_text_field_keeps_a_number_as_text(given):
    assert read({"note": given}, KINDS) == {"note": "10"}
    assert read({"epochs": given}, KINDS) == {"epochs": 10}


@pytest.mark.parametrize(
    ("name", "text"),
    [("epochs", "1.5"), ("epochs", "three"), ("lr", "nan"), ("layers", "64"), ("lr", "true")],
)
def test_value_of_another_kind_is_refused_by_name(name, text):
    with pytest.raises(UserError, match=name):
        read({name: text}, KINDS)


@pytest.mark.parametrize(("name", "value"), [("epochs", "1" * 400), ("lr", "1" * 400), ("note", None)])
def test_number_of_hundreds_of_digits_and_nothing_at_all_are_refused_by_name(name, value):
    with pytest.raises(UserError, match=f"^{name} = .*: give"):
        read({name: value}, KINDS)


@pytest.mark.parametrize(
    ("values", "named"), [({"note": None}, "note = None.*leave it out"), ({3: 4}, "int")]
)
def test_what_no_text_stands_for_is_not_sent(values, named):
    with pytest.raises(UserError, match=rf"^hyperparameters\..*{named}"):
        encode(values)


def test_what_is_encoded_comes_back():
    values = {"amp": False, "epochs": 3, "lr": 1e-3, "layers": [1, 2], "note": "some text"}
    assert read(encode(values), KINDS) == values


def test_text_that_looks_like_a_number_comes_as_it_was_given(tmp_path):
    (tmp_path / "hyperparameters.json").write_text('{"note": "2.10", "sagemaker_program": "train.py"}')
    environ = {"SM_INPUT_CONFIG_DIR": str(tmp_path), "SM_HPS": '{"note": 2.1}'}
    assert read(from_environment(environ), KINDS) == {"note": "2.10"}


def test_run_is_configured_by_name_and_its_folders_are_those_of_the_container(monkeypatch, tmp_path):
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    (tmp_path / "code/my.toml").write_text(
        '[data]\nname = "parquet"\nlabel = "y"\n[optim]\nlr = 1.0\nclip = 2.0\n'
    )
    given = {"model.hidden": "[8, 4]", "run.refit": "False"}
    config = train_config(
        {
            "SAGEMAKER_BASE_DIR": str(tmp_path),
            "SM_CHANNEL_TRAIN": str(tmp_path / "input/data/train"),
            "SM_HPS": json.dumps({"config": "my.toml", "optim.lr": "0.01", **given}),
            "DTLAB_CHECKPOINT_SECONDS": "1800",
        }
    )
    assert (config.optim.lr, config.optim.clip) == (0.01, 2.0)
    assert (config.model.hidden, config.run.refit) == ((8, 4), False)
    assert str(config.run.folder) == "../checkpoints/run"
    assert config.data.path == "../input/data/train"
    assert config.checkpoint.every_seconds == 1800


def test_hyperparameter_that_no_run_has_offers_a_near_name():
    with pytest.raises(UserError, match=r"did you mean optim\.lr"):
        train_config({"SM_HPS": '{"optim.lrr": "1"}'})


def test_hyperparameters_that_are_nested_too_deep_are_refused():
    with pytest.raises(UserError, match=r"^SM_HPS = .* is no JSON object"):
        from_environment({"SM_HPS": "[" * 100_000})
