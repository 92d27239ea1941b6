"""The small GPT on real ranks: unequal numbers of tokens weigh as in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dtlab
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.text import load_text
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel import data_parallel, no_sync, unwrap

GLOBAL_BATCH, STEPS, WINDOWS = 7, 5, 32


def targets_with_gaps(ids: Tensor, targets: Tensor) -> Tensor:
    """Every window loses another number of its targets, from none to all but one."""
    lost = (ids * 5) % targets.shape[1]
    return targets.masked_fill(torch.arange(targets.shape[1]) < lost.unsqueeze(1), -100)


def train(root: str, micro_batches: int, world_sizes_mean: bool = False) -> dict[str, Any]:
    """Five steps over 32 windows, the last of 4; with 3 ranks and micro-batches some are empty."""
    with dtlab.world() as w:
        text = load_text(16, root=root)
        torch.manual_seed(0)
        model = data_parallel(GPT(sequence=16, dim=16, num_layers=2, num_heads=2).double(), w)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        counts = []
        for rows in GlobalBatchSampler(WINDOWS, GLOBAL_BATCH):
            batch = text.train.take(rows)
            targets = targets_with_gaps(batch.ids, batch.targets)
            mine = int((targets != -100).sum())
            counts.append(mine)
            total = w.mean(float(mine)) * w.size
            divisor = max(1, mine) * w.size if world_sizes_mean else total
            optimizer.zero_grad()
            tokens, wanted = (part.tensor_split(micro_batches) for part in (batch.tokens, targets))
            for number in range(micro_batches):
                loss = token_loss(model(tokens[number]), wanted[number]).total * w.size / divisor
                if number < micro_batches - 1:
                    with no_sync(model):
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()
        return {"state": unwrap(model).state_dict(), "tokens": counts}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    place: Path = tmp_path_factory.mktemp("data")
    return str(place)


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(float((one["state"][name] - other["state"][name]).abs().max()) for name in one["state"])


def test_token_weighted_training_on_two_and_three_ranks_is_that_of_one_process(root):
    (alone,) = dtlab.launch(train, 1, root, 1, timeout=60, echo=False)
    assert len(alone["tokens"]) == STEPS
    for size, micro_batches in ((2, 1), (3, 2)):
        results = dtlab.launch(train, size, root, micro_batches, timeout=60, echo=False)
        assert any(len({result["tokens"][step] for result in results}) > 1 for step in range(STEPS))
        assert [sum(result["tokens"][step] for result in results) for step in range(STEPS)] == alone["tokens"]
        for result in results:
            assert distance(result, alone) < 1e-12
    # Means of means are another gradient: the comparison above would notice.
    wrong = dtlab.launch(train, 2, root, 1, True, timeout=60, echo=False)
    assert distance(wrong[0], alone) > 1e-5
