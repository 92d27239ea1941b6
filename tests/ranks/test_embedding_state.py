"""Whole states of sharded tables, with what the optimizer keeps for each row, from layout to layout."""

from typing import Any

import pytest
import torch
from torch import Tensor

import dtlab
from dtlab.errors import UserError
from dtlab.models.deepfm import DeepFM
from dtlab.parallel.embedding import shard_embeddings
from dtlab.parallel.embedding_optim import RowWiseAdagrad
from dtlab.train.full_state import gather_state, scatter_state

SIZES = [7, 4]
MOVES = ["row_wise", "row_wise_cyclic", "table_wise", "row_wise_cyclic"]


def model_of(seed: int) -> DeepFM:
    torch.manual_seed(seed)
    return DeepFM(SIZES, num_dense=0, dim=3, hidden=(4,)).double()


def table_of(model: Any) -> Tensor:
    return next(p for name, p in model.named_parameters() if name == "embedding.weight")


def train(model: Any, optimizer: torch.optim.Optimizer, rank: int, ranks: int) -> None:
    draw = torch.Generator().manual_seed(3)
    ids = torch.stack([torch.randint(size, (6,), generator=draw) for size in SIZES], 1)[rank::ranks]
    model.zero_grad()
    # Tables average over the ranks, and each rank has a part of the sum.
    (model.embedding(ids).square().sum() * ranks).backward()
    optimizer.step()


def move(kind: str) -> list[dict[str, Any]]:
    """The whole state in the first layout, and after each move to the next."""
    found = []
    state: dict[str, Any] = {}
    with dtlab.world() as w:
        for number, strategy in enumerate(MOVES):
            model = shard_embeddings(model_of(0 if number == 0 else 10 + w.rank), {"embedding": strategy})
            table = [table_of(model)]
            optimizer: Any = RowWiseAdagrad(table, 0.1) if kind == "rows" else torch.optim.Adam(table, 0.1)
            if number:
                scatter_state(state, model, optimizer)
            else:
                train(model, optimizer, w.rank, w.size)
            state = gather_state(model, optimizer)
            found.append(state)
    return found


@pytest.mark.parametrize("kind", ["rows", "numbers"])
def test_a_sharded_table_and_its_state_are_whole_on_rank_0_and_move_between_layouts(kind: str) -> None:
    model = model_of(0)
    table = [table_of(model)]
    optimizer: Any = RowWiseAdagrad(table, 0.1) if kind == "rows" else torch.optim.Adam(table, 0.1)
    train(model, optimizer, 0, 1)
    expected = gather_state(model, optimizer)
    first, second = dtlab.launch(move, 2, kind, timeout=120, echo=False)
    assert second == [{}] * len(MOVES)
    for state in first:
        assert state["model"].keys() == expected["model"].keys()
        for name, tensor in expected["model"].items():
            torch.testing.assert_close(state["model"][name], tensor, rtol=0, atol=1e-12, msg=name)
        kept = state["optimizer"]["state"]["embedding.weight"]
        for key, value in expected["optimizer"]["state"]["embedding.weight"].items():
            torch.testing.assert_close(kept[key], value, rtol=0, atol=1e-12, msg=key)


def refused() -> str:
    with dtlab.world():
        model = shard_embeddings(model_of(0), {"embedding": "column_wise"})
        table = table_of(model)
        optimizer = torch.optim.SGD([table], 0.1)
        train(model, optimizer, 0, 1)
        optimizer.state[table] = {
            "sum": torch.zeros(len(table))
        }  # as an optimizer of somebody's own may keep
        try:
            gather_state(model, optimizer)
        except UserError as error:
            return str(error)
        return "accepted"


def test_a_number_for_each_row_has_no_whole_when_the_table_is_cut_by_columns() -> None:
    for message in dtlab.launch(refused, 2, timeout=60, echo=False):
        assert "hold the table row_wise" in message
