"""What a slot of the capstone's trainer gives is refused by the name of the slot, not deep in the trainer."""

from types import SimpleNamespace

import pytest
from torch import nn

from dtlab import UserError
from dtlab.course.capstone import Recipe, auc_said, ordered, parts_kept, shared


def gives(value):
    return lambda *arguments: value


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("share", (nn.Linear(1, 1),), "share: gave a tuple; give the model"),
        ("order", [[0, 1]], "order: a list has no state_dict"),
        ("kept", [nn.Linear(1, 1)], "kept: gave a list; give a dict"),
        ("auc", SimpleNamespace(auc=0.7), "auc: gave a SimpleNamespace; give one float"),
    ],
)
def test_a_wrong_kind_of_answer_is_named_by_its_slot(part, value, says):
    with pytest.raises(UserError, match=says.replace("(", r"\(")):
        ask(part, value)


@pytest.mark.parametrize("part", ["share", "order", "kept", "auc"])
def test_nothing_is_still_to_do(part):
    with pytest.raises(NotImplementedError):
        ask(part, None)


def test_a_right_kind_of_answer_comes_back():
    model = nn.Linear(1, 1)
    assert ask("share", model) is model
    assert ask("kept", {"model": model}) == {"model": model}
    assert ask("auc", 0.75) == 0.75


def ask(part, value):
    recipe = Recipe(**{part: gives(value)})
    asked = {
        "share": lambda: shared(recipe, None, None),
        "order": lambda: ordered(recipe, None, 4, 0),
        "kept": lambda: parts_kept(recipe, None),
        "auc": lambda: auc_said(recipe, None, None, None),
    }
    return asked[part]()
