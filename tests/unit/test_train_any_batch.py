"""The trainer takes what a torch data set brings: tensors, dicts and tuples, from their own loader."""

from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import dtlab
from dtlab.data.rows import rows_of, split_rows
from dtlab.errors import UserError
from dtlab.train.trainer import Trainer

Pair = namedtuple("Pair", "x y")
SHAPES = {
    "tensor": lambda x: x,
    "dict": lambda x: {"x": x, "name": f"row {int(x[0])}", "number": int(x[0])},
    "tuple": lambda x: (x, int(x[0])),
    "named": lambda x: Pair(x, int(x[0])),
}


class Rows(Dataset):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int):
        return SHAPES[self.kind](torch.full((2,), float(index), dtype=torch.float64))


def column(kind: str, batch) -> torch.Tensor:
    return batch if kind == "tensor" else batch["x"] if kind == "dict" else batch[0]


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("options", [{}, {"micro_batch": 2, "clip": 1e9}])
def test_epoch_over_a_torch_data_set_is_that_over_its_rows(kind, options):
    model = nn.Linear(2, 1, bias=False).double()
    seen: list[int] = []

    def loss(net, batch):
        x = column(kind, batch)
        seen.append(len(x))
        assert rows_of(batch) == len(x)
        return net(x).sum()

    loader = dtlab.data_loader(Rows(kind), dtlab.GlobalBatchSampler(10, 4, shuffle=False))
    with torch.no_grad():
        model.weight.fill_(0.0)
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        show_progress=False,
        log_every=1,
        **options,
    )
    result = trainer.train_epoch(loader)
    assert result.steps == 3
    assert seen == ([2, 2, 2, 2, 2] if options else [4, 4, 2])
    means = [1.5, 5.5, 8.5]  # of the windows 0-3, 4-7 and 8-9
    assert model.weight[0, 0].item() == pytest.approx(-0.1 * sum(means))
    assert 0 <= result.wait_share <= 1


def test_lists_of_names_are_cut_with_their_rows_and_constants_go_everywhere():
    batch = {
        "x": torch.arange(5),
        "name": list("abcde"),
        "scale": 2.0,
        "inner": [torch.arange(5), torch.tensor(3)],
    }
    first, second = split_rows(batch, [3, 2])
    assert (first["x"].tolist(), first["name"], first["scale"]) == ([0, 1, 2], ["a", "b", "c"], 2.0)
    assert (second["inner"][0].tolist(), second["inner"][1].item()) == ([3, 4], 3)
    assert isinstance(split_rows(Pair(torch.arange(2), 1), [1, 1])[0], Pair)


@pytest.mark.parametrize("batch", [{}, {"a": 1}, (1, 2.0), object(), torch.tensor(1.0)])
def test_batch_without_rows_is_refused(batch):
    with pytest.raises(UserError, match="no tensor with rows"):
        rows_of(batch)
