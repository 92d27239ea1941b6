"""A model with tables dealt out, and its optimizer, go on from a checkpoint on any number of ranks."""

import pytest
import torch

from dtlab import Checkpointer, launch, world
from dtlab.models.deepfm import DeepFM
from dtlab.parallel.ddp import data_parallel, unwrap
from dtlab.parallel.embedding import full_state, shard_embeddings
from dtlab.train.whole_state import WholeState


def _trained(w, strategy, steps):
    torch.manual_seed(0)
    replica = data_parallel(shard_embeddings(DeepFM([7, 5], 1, dim=4, hidden=(4,)), strategy), w)
    optimizer = torch.optim.Adam(replica.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        replica(torch.tensor([[1, 4], [6, 0]]), torch.ones(2, 1)).square().sum().backward()
        optimizer.step()
    return unwrap(replica), optimizer


def _save(folder):
    with world() as w, Checkpointer(folder, asynchronous=False) as saved:
        model, optimizer = _trained(w, "row_wise", 3)
        saved.save({"state": WholeState(model, optimizer)}, 3, samples=6)
        return full_state(model), len(optimizer.state)


def _load(folder, strategy):
    with world() as w, Checkpointer(folder, asynchronous=False) as saved:
        model, optimizer = _trained(w, strategy, 0)
        saved.load({"state": WholeState(model, optimizer)})
        moments = model.embedding.whole_of(optimizer.state[model.embedding.weight]["exp_avg"])
        return full_state(model), moments, len(optimizer.state)


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "row_wise"), (3, "row_wise_cyclic")])
def test_a_run_goes_on_from_it_in_another_layout(tmp_path, ranks, strategy):
    before = launch(_save, 2, tmp_path, timeout=60, echo=False)
    after = launch(_load, ranks, tmp_path, strategy, timeout=60, echo=False)
    for state, moments, entries in after:
        assert state.keys() == before[0][0].keys()
        assert all(torch.equal(state[name], before[0][0][name]) for name in state)
        assert moments.shape == (12, 4)
        assert (moments[1] != 0).any()
        assert (moments[3] == 0).all()
        assert entries == before[0][1]
