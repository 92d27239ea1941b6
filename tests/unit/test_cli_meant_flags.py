"""A flag that dtlab lacks is answered with the one that was meant."""

import pytest

from dtlab.cli import main


def refused(capsys, words):
    assert main(words.split()) == 2
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("train --lr 1e-3", "--optim.lr"),
        ("train --lr=1e-3", "--optim.lr"),
        ("train --optim.learning-rate 1e-3", "--optim.lr"),
        ("train --epochs 3", "--optim.max-epochs"),
        ("train --batch-size 64", "--optim.global-batch"),
        ("train --batch_size 64", "--optim.global-batch"),
        ("train --no-run.refit", "--run.no-refit"),
        ("train --no-refit", "--run.no-refit"),
        ("train --optim.global-bach 3", "--optim.global-batch"),
        ("cost ml.g5.xlarge --spot", "--kind spot"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_one_that_was_meant(capsys, words, meant):
    assert refused(capsys, words).endswith(f"Did you mean {meant}?")


def test_a_flag_like_no_other_gets_no_wrong_hint(capsys):
    assert refused(capsys, "train --xyzzy 1") == "dtlab: Unknown option: --xyzzy."


@pytest.mark.parametrize("file", ["", "examples/flights.toml "])
def test_two_values_after_one_flag_are_answered_with_the_flag_given_twice(capsys, file):
    line = refused(capsys, f"train {file}--data.name parquet --data.numeric price bought")
    assert line.endswith("give the flag once for each value: --data.numeric price --data.numeric bought")
