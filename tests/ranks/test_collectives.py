"""All-reduce by hand on real ranks: the values, and the messages and bytes that each rank sends."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import dtlab
from dtlab.collectives import (
    Traffic,
    chunk_bounds,
    in_steps,
    parameter_server_all_reduce,
    ring_all_reduce,
    traffic,
    tree_all_reduce,
)

SIZES = (0, 1, 2, 3, 10, 1001)
ALGORITHMS = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "server": parameter_server_all_reduce,
}


def reduce_everything() -> dict[str, Any]:
    """On each rank: every algorithm on every size and on awkward tensors, with the traffic of size 10."""
    with dtlab.world() as w:
        results: dict[str, Any] = {}
        for name, algorithm in ALGORITHMS.items():
            for size in SIZES:
                own = torch.randn(size, generator=torch.Generator().manual_seed(w.rank), dtype=torch.float64)
                with traffic() as counted:
                    returned = algorithm(own)
                assert returned is own
                results[name, size] = own, counted
            crossed = (torch.arange(12, dtype=torch.int64).reshape(3, 4) * 10 ** (3 * w.rank)).t()
            results[name, "not contiguous"] = algorithm(crossed)
            parameter = torch.nn.Parameter(torch.full((2, 3), float(w.rank + 1)))
            results[name, "parameter"] = algorithm(parameter).detach()
            results[name, "number"] = algorithm(torch.tensor(float(w.rank)))
        return results


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return list(dtlab.launch(reduce_everything, request.param, timeout=60, echo=False))


def inputs(num_ranks: int, size: int) -> list[torch.Tensor]:
    return [
        torch.randn(size, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        for rank in range(num_ranks)
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_rank_holds_the_sum_whatever_the_size(ranks: list[dict[str, Any]], name: str) -> None:
    for size in SIZES:
        expected = sum(inputs(len(ranks), size), torch.zeros(size, dtype=torch.float64))
        for result in ranks:
            torch.testing.assert_close(result[name, size][0], expected, rtol=0, atol=1e-12)
            assert torch.equal(result[name, size][0], ranks[0][name, size][0]), "replicas must be identical"


def test_the_server_adds_in_rank_order_so_it_equals_one_process_bit_for_bit(
    ranks: list[dict[str, Any]],
) -> None:
    expected = inputs(len(ranks), 1001)[0].clone()
    for other in inputs(len(ranks), 1001)[1:]:
        expected += other
    assert torch.equal(ranks[0]["server", 1001][0], expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_views_parameters_and_single_numbers_are_summed_in_place(
    ranks: list[dict[str, Any]], name: str
) -> None:
    size = len(ranks)
    factor = sum(10 ** (3 * rank) for rank in range(size))
    for result in ranks:
        assert torch.equal(result[name, "not contiguous"], (torch.arange(12).reshape(3, 4) * factor).t())
        assert torch.equal(result[name, "parameter"], torch.full((2, 3), size * (size + 1) / 2))
        assert result[name, "number"] == size * (size - 1) / 2


def test_a_ring_sends_2_n_minus_1_messages_and_each_rank_its_own_chunks(ranks: list[dict[str, Any]]) -> None:
    size = len(ranks)
    for numel in (10, 1001, 1):
        lengths = [end - start for start, end in chunk_bounds(numel, size)]
        for rank, result in enumerate(ranks):
            counted: Traffic = result["ring", numel][1]
            assert counted.messages == counted.received_messages == 2 * (size - 1)
            # Reduce-scatter sends all chunks but r+1, all-gather all but r+2.
            elements = 2 * numel - lengths[(rank + 1) % size] - lengths[(rank + 2) % size]
            assert counted.bytes == 8 * elements
            right = counted.by_peer[(rank + 1) % size]
            assert (right.sent_messages, right.sent_bytes) == (2 * (size - 1), 8 * elements)
            assert counted.by_op["send"].calls == 2 * (size - 1)
        total = sum(result["ring", numel][1].bytes for result in ranks)
        assert total == 2 * (size - 1) * 8 * numel, "2(N-1)/N x S on average, exactly"


def test_2_n_minus_1_times_the_tensor_pass_the_parameter_server(ranks: list[dict[str, Any]]) -> None:
    size, tensor_bytes = len(ranks), 8 * 1001
    server: Traffic = ranks[0]["server", 1001][1]
    assert server.moved_bytes == 2 * (size - 1) * tensor_bytes
    assert server.messages == size - 1
    for rank, result in enumerate(ranks[1:], start=1):
        worker: Traffic = result["server", 1001][1]
        assert worker.moved_bytes == 2 * tensor_bytes
        assert set(worker.by_peer) == {0}
        assert server.by_peer[rank].sent_bytes == server.by_peer[rank].received_bytes == tensor_bytes


def test_a_tree_sends_one_tensor_up_and_one_down_each_edge(ranks: list[dict[str, Any]]) -> None:
    size, tensor_bytes = len(ranks), 8 * 1001
    assert sum(result["tree", 1001][1].messages for result in ranks) == 2 * (size - 1)
    rounds = (size - 1).bit_length()
    root: Traffic = ranks[0]["tree", 1001][1]
    assert (root.messages, root.bytes) == (rounds, rounds * tensor_bytes)


def test_an_empty_tensor_sends_nothing(ranks: list[dict[str, Any]]) -> None:
    for name in ALGORITHMS:
        assert all(result[name, 0][1].messages == 0 for result in ranks)


def test_recorded_messages_line_up_in_the_steps_of_the_algorithm(ranks: list[dict[str, Any]]) -> None:
    size = len(ranks)
    steps = {"ring": 2 * (size - 1), "tree": 2 * (size - 1).bit_length(), "server": 2 * (size - 1)}
    for name, expected in steps.items():
        messages = in_steps([result[name, 10][1] for result in ranks])
        assert len(messages) == sum(result[name, 10][1].messages for result in ranks)
        assert max(message.step for message in messages) + 1 == expected, name
        for step in range(expected):
            now = [message for message in messages if message.step == step]
            assert len({message.src for message in now}) == len({message.dst for message in now}) == len(now)
    ring = in_steps([result["ring", 10][1] for result in ranks])
    for message in ring:
        assert message.dst == (message.src + 1) % size
        half, step = divmod(message.step, size - 1)
        assert message.chunk == (message.src + half - step) % size


def reduce_in_a_pair() -> Any:
    with dtlab.world() as w:
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        own, other = pairs[w.rank % 2], pairs[1 - w.rank % 2]
        with traffic() as counted:
            value = ring_all_reduce(torch.full((6,), float(10**w.rank)), own)
        try:
            ring_all_reduce(torch.ones(2), other)  # type: ignore[arg-type]
        except dtlab.UserError as error:
            return value, counted, str(error)


def test_a_group_of_some_ranks_sums_among_them_and_refuses_the_others() -> None:
    results = dtlab.launch(reduce_in_a_pair, 4, timeout=60, echo=False)
    for rank, (value, counted, message) in enumerate(results):
        assert torch.equal(value, torch.full((6,), 101.0 if rank % 2 == 0 else 1010.0))
        assert set(counted.by_peer) == {(rank + 2) % 4}, "peers are counted by global rank"
        assert message.startswith(f"group: rank {rank} is not a member")


def test_without_a_group_it_is_a_world_of_one_and_sparse_tensors_are_refused() -> None:
    tensor = torch.arange(3.0)
    for algorithm in ALGORITHMS.values():
        assert torch.equal(algorithm(tensor), torch.arange(3.0))
        with pytest.raises(dtlab.UserError, match="tensor: layout"):
            algorithm(torch.eye(2).to_sparse())
