"""A state comes back from flat tensors and JSON text as it was; what only code could restore is refused."""

import json
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dtlab.errors import UserError
from dtlab.train.generators import Generators
from dtlab.train.state import flatten, unflatten


def there_and_back(state):
    tensors, tree = flatten(state)
    return unflatten(json.loads(json.dumps(tree, allow_nan=False)), tensors)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


STATES = {
    "numbers": {"a": 1, "b": 2.5, "c": True, "d": None, "e": "text", "f": 2**80, "g": 0.1 + 0.2},
    "not finite": [float("inf"), float("-inf"), float("nan")],
    "integer keys": {0: {"step": torch.tensor(3.0)}, 1: {}},
    "mixed keys": {(1, 2): "tuple", "$tensor": "looks like a tag", True: 0},
    "one tag-like key": {"$tensor": 1},
    "tuples": {"betas": (0.9, 0.999), "nested": [(1,), [()]]},
    "bytes": {"raw": b"\x00\xff", "none": b""},
    "arrays": {"u32": np.arange(3, dtype=np.uint32), "f64": np.zeros((2, 0)), "flag": np.array(True)},
    "dtypes": {name: torch.ones(2).to(getattr(torch, name)) for name in ("bfloat16", "float64", "bool")},
    "shapes": {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3), "turned": torch.ones(2, 3).T},
    "one path twice": {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}},
    "torch words": {"dtype": torch.bfloat16, "device": torch.device("cpu"), "size": torch.Size([2, 3])},
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_comes_back_as_it_was(name):
    state = STATES[name]
    back = there_and_back(state)
    if name == "torch words":
        assert back == {"dtype": torch.bfloat16, "device": torch.device("cpu"), "size": (2, 3)}
    else:
        assert same(state, back)


def test_numpy_numbers_come_back_as_plain_ones():
    back = there_and_back({"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True)})
    assert same(back, {"a": 0.5, "b": 3, "c": True})


@dataclass
class Config:
    lr: float = 0.1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"model": {"config": Config()}}, "state/model/config is a Config"),
        ([1, {2, 3}], "state/1 is a set"),
        ({"f": print}, "state/f is a builtin_function_or_method"),
        ({"names": np.array(["a"], dtype=object)}, "state/names is an array of object"),
    ],
)
def test_what_only_code_could_restore_is_refused_by_its_path(value, words):
    with pytest.raises(UserError, match=words):
        flatten(value)


@pytest.mark.parametrize("tree", [{"$code": "print"}, {"$dtype": "load"}, {"$tensor": "missing"}])
def test_a_tree_that_is_not_ours_is_refused(tree):
    with pytest.raises(UserError):
        unflatten(tree, {})


def test_an_adamw_state_comes_back_and_goes_on_with_the_same_bits():
    torch.manual_seed(0)
    model, twin = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    one = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
    two = torch.optim.AdamW(twin.parameters(), lr=0.5)
    x = torch.randn(3, 4)

    def step(net, optimizer):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()

    step(model, one)
    tensors, tree = flatten({"model": model.state_dict(), "optimizer": one.state_dict()})
    assert "state/optimizer/state/0/exp_avg" in tensors
    back = unflatten(json.loads(json.dumps(tree)), {name: t.clone() for name, t in tensors.items()})
    twin.load_state_dict(back["model"])
    two.load_state_dict(back["optimizer"])
    step(model, one)
    step(twin, two)
    assert torch.equal(model.weight, twin.weight)


def draws():
    return (
        random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), float(torch.rand(1)),
        float(torch.randn(3)[2]),
    )  # fmt: skip


def test_all_generators_go_on_where_they_were():
    random.gauss(0, 1)  # leaves a second value waiting
    np.random.randn()
    state = there_and_back(Generators().state_dict())
    first = draws()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert draws() != first
    Generators().load_state_dict(state)
    assert draws() == first


def test_generators_for_another_world_size_differ_by_rank_and_repeat():
    state = Generators().state_dict()

    def derived(step, rank, world_size):
        Generators().rederive(state, step=step, rank=rank, world_size=world_size)
        return draws()

    places = [(10, 0, 4), (10, 1, 4), (11, 0, 4), (10, 0, 3)]
    found = [derived(*place) for place in places]
    assert len(set(found)) == 4
    assert found == [derived(*place) for place in places]
