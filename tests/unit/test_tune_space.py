"""What may be searched is checked before a rank starts."""

from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.commands.config_file import read_config_file
from dtlab.errors import UserError
from dtlab.train.config import TrainConfig
from dtlab.tune.space import Choice, Range, changed, read_space

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune.toml"


def test_range_and_list_are_read():
    space = read_space(
        {"optim.lr": {"low": 1e-4, "high": 0.1, "log": True}, "model.dim": [4, 8]}, TrainConfig()
    )
    assert space == {"optim.lr": Range(1e-4, 0.1, True), "model.dim": Choice((4, 8))}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "name one setting"),
        ({"optim.rate": [1.0]}, "no such setting"),
        ({"lr": [1.0]}, "no such setting"),
        ({"optim.lr": {"low": 1.0, "high": 0.1}}, "low must be"),
        ({"optim.lr": {"low": 0.0, "high": 0.1, "log": True}}, "above 0"),
        ({"optim.lr": [1e-3, -1.0]}, "optim.lr = -1.0"),
        ({"optim.lr": {"low": -1.0, "high": 0.1}}, "optim.lr = -1.0"),
        ({"optim.lr": [1e-3, 1e-3]}, "each once"),
        ({"optim.lr": 1e-3}, "give a list"),
        ({"run.folder": ["a", "b"]}, "run.folder: says where a run is kept"),
    ],
)
def test_space_that_no_run_could_take_is_refused(given, word):
    with pytest.raises(UserError, match=word):
        read_space(given, TrainConfig())


def test_example_is_a_search():
    tables = read_config_file(str(EXAMPLE), besides=("tune",))
    assert set(read_space(tables["tune"]["space"], TrainConfig())) == {"optim.lr", "optim.global_batch"}


def test_changed_leaves_the_rest():
    config = changed(TrainConfig(), {"model.hidden": [4], "optim.lr": 0.5})
    assert config.model.hidden == (4,)
    assert config.optim.global_batch == TrainConfig().optim.global_batch


@pytest.mark.parametrize(
    ("text", "flags", "word"),
    [
        ("[optim]\nlr = 1e-3\n", ["--trials", "2"], "[tune.space]"),
        ('[tune.space]\n"optim.lr" = [1e-3]\n', [], "give trials, budget_usd or both"),
        ('[tune.space]\n"optim.lr" = {low = 1e-3, high = 1.0}\n', ["--search", "grid"], "needs a list"),
        ('[tune.space]\n"optim.lr" = [1e-3]\n', ["--trials", "0"], "trials = 0"),
        ('[tune.space]\n"optim.lr" = [1e-3]\n', ["--budget-usd", "-1"], "budget_usd = -1"),
        ('[optin]\nlr = 1\n[tune.space]\n"optim.lr" = [1e-3]\n', ["--trials", "1"], "did you mean [optim]"),
    ],
)
def test_bad_search_is_one_line(tmp_path, capsys, text, flags, word):
    file = tmp_path / "search.toml"
    file.write_text(text)
    assert main(["tune", str(file), "--folder", str(tmp_path / "out"), *flags]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
