"""Sharded embedding tables on real ranks: equal to one process, and their bytes equal to the closed form."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dtlab
from dtlab.collectives import Traffic, traffic
from dtlab.cost.embedding import (
    column_wise_bytes,
    dense_bytes,
    dtensor_bytes,
    row_wise_bytes,
    sparse_bytes,
)
from dtlab.models.deepfm import DeepFM, FieldEmbedding
from dtlab.parallel import data_parallel, no_sync, unwrap
from dtlab.parallel.embedding import STRATEGIES, full_state, load_full_state, shard_embeddings
from dtlab.parallel.embedding_columns import ColumnWise
from dtlab.parallel.embedding_dtensor import DTensorRows
from dtlab.parallel.embedding_layout import Cyclic
from dtlab.parallel.embedding_optim import RowWiseAdagrad
from dtlab.parallel.embedding_rows import RowWise
from dtlab.train.checkpoint_parts import state_of
from dtlab.train.gradients import clip_by_norm, total_norm
from dtlab.train.safetensors_io import export_model

SHARDED = [name for name in STRATEGIES if name != "data_parallel"]
CARDINALITIES, DIM = [11, 2, 7], 6  # 20 rows in three fields; 6 columns on 4 ranks are uneven


def launch(function: Any, nproc: int, *args: Any) -> list[Any]:
    return list(dtlab.launch(function, nproc, *args, timeout=90, echo=False))


def batch_of(rank: int, kind: str) -> Tensor:
    """Indices [B, 3] of one rank: other counts on every rank, duplicates, hot rows, nothing at all."""
    count = {"empty ranks": 0 if rank else 4, "nothing at all": 0, "one hot row": 9}.get(kind, 3 + 2 * rank)
    draw = torch.Generator().manual_seed(rank)
    batch = torch.stack([torch.randint(n, (count,), generator=draw) for n in CARDINALITIES], 1)
    if kind == "one hot row":
        batch[:, 0] = 10  # the last row of its field
    return batch


def num_different(rank: int, kind: str) -> int:
    return len((batch_of(rank, kind) + torch.tensor([0, 11, 13])).unique())


KINDS = ["uneven batches", "empty ranks", "nothing at all", "one hot row"]


def full_table(rows: str = "fields", sparse: bool = False) -> nn.Embedding:
    torch.manual_seed(0)
    if rows == "fields":
        return FieldEmbedding(CARDINALITIES, DIM, sparse=sparse).double()
    return nn.Embedding(int(rows), DIM, sparse=sparse).double()


def weighted(vectors: Tensor) -> Tensor:
    """A loss in which every number of every vector has its own gradient."""
    return (vectors * torch.arange(1, vectors.numel() + 1).view_as(vectors).sin() + vectors**2).sum()


def look_up(strategies: list[str], sparse: bool) -> dict[str, Any]:
    """For each strategy and kind of batch: vectors, gradient of the whole table, and traffic."""
    with dtlab.world() as w:
        found: dict[str, Any] = {}
        for strategy in strategies:
            table = full_table(sparse=sparse)
            if w.rank:
                table.weight.data.zero_()  # rank 0's values count
            table = shard_embeddings(table, strategy)
            for kind in KINDS:
                table.weight.grad = None
                with traffic() as counted:
                    vectors = table(batch_of(w.rank, kind))
                    weighted(vectors).backward()
                own = table.weight.grad
                is_sparse = own.is_sparse
                if hasattr(own, "full_tensor"):
                    gradient = own.full_tensor()
                else:
                    gradient = torch.zeros(sum(CARDINALITIES), DIM, dtype=torch.float64)
                    table.put(gradient, own.to_dense())
                    dist.all_reduce(gradient)
                found[strategy, kind] = {
                    "vectors": vectors.detach(), "gradient": gradient, "is_sparse": is_sparse,
                    "bytes": counted.bytes, "by_op": {op: t.bytes for op, t in counted.by_op.items()},
                    "asked_of": getattr(table, "asked_of", None),
                    "asked_by": getattr(table, "asked_by", None),
                    "unique": getattr(table, "num_unique", None), "longest": getattr(table, "longest", None),
                }  # fmt: skip
            found[strategy, "full"] = table.full_weight()
            found[strategy, "own numbers"] = getattr(table.weight, "_local_tensor", table.weight).numel()
        return found


def in_one_process(size: int, kind: str) -> tuple[list[Tensor], Tensor]:
    table = full_table()
    vectors = [table(batch_of(rank, kind)) for rank in range(size)]
    (sum(weighted(one) for one in vectors) / size).backward()
    return [one.detach() for one in vectors], table.weight.grad


def close(found: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12, msg=f"{what}: {found} is not {expected}")


def check_equal(results: list[dict[str, Any]], strategies: list[str], is_sparse: bool) -> None:
    size = len(results)
    for strategy in strategies:
        for kind in KINDS:
            vectors, gradient = in_one_process(size, kind)
            for rank, found in enumerate(results):
                seen = found[strategy, kind]
                close(seen["vectors"], vectors[rank], f"{strategy}, {kind}, rank {rank}")
                close(seen["gradient"], gradient, f"gradient of {strategy}, {kind}")
                assert seen["is_sparse"] == is_sparse
        assert all(torch.equal(found[strategy, "full"], full_table().weight) for found in results)
        held = [found[strategy, "own numbers"] for found in results]
        assert sum(held) == sum(CARDINALITIES) * DIM, "every number on one rank, none lost, none twice"


@pytest.mark.parametrize("nproc", [2, 4])
def test_vectors_gradients_and_bytes_of_every_strategy(nproc: int) -> None:
    results = launch(look_up, nproc, SHARDED, False)
    check_equal(results, SHARDED, is_sparse=False)
    for rank, found in enumerate(results):
        for kind in KINDS:
            for strategy in ("row_wise", "row_wise_cyclic", "table_wise"):
                requests = [other[strategy, kind]["asked_of"] for other in results]
                seen = found[strategy, kind]
                assert seen["asked_by"] == [line[rank] for line in requests]
                assert seen["bytes"] == row_wise_bytes(requests, rank, DIM, element_bytes=8)
            unique = [num_different(r, kind) for r in range(nproc)]
            seen = found["column_wise", kind]
            assert seen["unique"] == unique
            assert seen["bytes"] == column_wise_bytes(unique, rank, DIM, element_bytes=8)
            longest = max(batch_of(r, kind).numel() for r in range(nproc)) or 1
            seen = found["row_wise_dtensor", kind]
            assert seen["longest"] == longest
            assert seen["bytes"] == dtensor_bytes(longest, DIM, nproc, element_bytes=8), seen["by_op"]


def test_sparse_gradients_of_the_own_part_equal_the_dense_ones() -> None:
    strategies = [name for name in SHARDED if name != "row_wise_dtensor"]
    check_equal(launch(look_up, 4, strategies, True), strategies, is_sparse=True)


def test_a_hot_row_costs_its_owner_one_vector_for_each_rank() -> None:
    results = launch(look_up, 2, ["row_wise"], False)
    requests = [found["row_wise", "one hot row"]["asked_of"] for found in results]
    different = [num_different(r, "one hot row") for r in range(2)]
    assert [sum(line) for line in requests] == different
    assert all(count < batch_of(0, "one hot row").numel() for count in different)


def odd_sizes() -> dict[str, Any]:
    with dtlab.world():
        found: dict[str, Any] = {}
        for rows in (11, 5, 2):  # not divisible; the last ranks empty; fewer rows than ranks
            for strategy in ("row_wise", "row_wise_cyclic", "row_wise_dtensor")[: 3 if rows == 11 else 2]:
                table = shard_embeddings(full_table(str(rows)), strategy)
                indices = torch.tensor([rows - 1, 0, rows - 1])
                vectors = table(indices)
                vectors.sum().backward()
                found[strategy, rows] = (vectors.detach(), full_table(str(rows)).weight.detach()[indices])
            for strategy in ("row_wise", "column_wise"):
                table = shard_embeddings(full_table(str(rows)), strategy)
                try:
                    table(torch.tensor([[0], [rows]]))
                except dtlab.UserError as error:
                    found[strategy, rows, "outside"] = str(error)
        return found


def test_floor_division_would_lose_the_last_rows_and_an_index_outside_is_named() -> None:
    for found in launch(odd_sizes, 4):
        for key, value in found.items():
            if "outside" in key:
                assert value == f"index {key[1]} is outside the table's 0..{key[1] - 1}"
            else:
                assert torch.equal(*value), key


def global_batch(step: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    categorical = torch.stack([torch.randint(n, (size,), generator=draw) for n in CARDINALITIES], 1)
    categorical[: size // 2, 0] = 3  # a hot row
    dense = torch.randn(size, 3, generator=draw, dtype=torch.float64)
    return categorical, dense, torch.randint(2, (size,), generator=draw).double()


def optimizers(model: DeepFM, sparse: bool) -> list[torch.optim.Optimizer]:
    tables = [model.embedding.weight, model.first_order.weight]
    rest = [p for p in model.parameters() if not any(p is table for table in tables)]
    kind = torch.optim.SparseAdam if sparse else torch.optim.AdamW
    return [torch.optim.AdamW(rest, lr=0.01), *[kind([table], lr=0.01) for table in tables]]


def deepfm(seed: int, sparse: bool) -> DeepFM:
    torch.manual_seed(seed)
    return DeepFM(CARDINALITIES, 3, dim=DIM, hidden=(8,), sparse=sparse).double()


SIZES = (13, 9, 1, 13)  # of the global batch in each step: with one row, all ranks but one are empty


def train(model: nn.Module, sparse: bool, rank: int, size: int) -> list[float]:
    steppers, losses = optimizers(unwrap(model), sparse), []
    for step, rows in enumerate(SIZES):
        categorical, dense, labels = (column[rank::size] for column in global_batch(step, rows))
        loss = F.binary_cross_entropy_with_logits(model(categorical, dense), labels, reduction="sum")
        (loss * size / rows).backward()
        losses.append(loss.item() / rows)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
    return losses


def train_sharded(strategies: list[Any], engine: str, sparse: bool) -> list[dict[str, Any]]:
    with dtlab.world() as w:
        found = []
        for strategy in strategies:
            model = shard_embeddings(deepfm(w.rank, sparse), strategy)
            wrapped = data_parallel(model, w, engine=engine)  # type: ignore[arg-type]
            losses = train(wrapped, sparse, w.rank, w.size)
            found.append({"state": full_state(unwrap(wrapped)), "losses": losses})
        return found


MIXED = {"embedding": "column_wise", "first_order": "row_wise_cyclic"}
PART = {"embedding": "table_wise"}  # first_order stays replicated


@pytest.mark.parametrize(
    ("nproc", "engine", "sparse", "strategies"),
    [
        (2, "torch", False, ["data_parallel", "row_wise", "table_wise", MIXED, PART, "row_wise_dtensor"]),
        (4, "torch", True, ["row_wise", "row_wise_cyclic", MIXED, PART]),
        (3, "by_hand", False, ["row_wise", MIXED]),
    ],
)
def test_deepfm_with_sharded_tables_trains_as_in_one_process(
    nproc: int, engine: str, sparse: bool, strategies: list[Any]
) -> None:
    alone = deepfm(0, sparse)
    losses = train(alone, sparse, 0, 1)
    results = launch(train_sharded, nproc, strategies, engine, sparse)
    for number, strategy in enumerate(strategies):
        for name, tensor in alone.state_dict().items():
            for found in results:
                close(found[number]["state"][name], tensor, f"{name} under {strategy}")
        for step, loss in enumerate(losses):
            total = sum(found[number]["losses"][step] for found in results)
            assert total == pytest.approx(loss, abs=1e-12)


def accumulate() -> dict[str, Tensor]:
    with dtlab.world() as w:
        model = shard_embeddings(deepfm(0, False), MIXED)
        wrapped = data_parallel(model, w)
        categorical, dense, labels = (column[w.rank :: w.size] for column in global_batch(0, 12))
        for part in (slice(0, 4), slice(4, None)):
            with no_sync(wrapped) if part.start == 0 else nullcontext():
                logits = wrapped(categorical[part], dense[part])
                loss = F.binary_cross_entropy_with_logits(logits, labels[part], reduction="sum")
                (loss * w.size / 12).backward()
        found = {}
        for name in ("embedding", "first_order"):
            table = model.get_submodule(name)
            full = torch.zeros(table.num_embeddings, table.embedding_dim, dtype=torch.float64)
            table.put(full, table.weight.grad)
            dist.all_reduce(full)
            found[f"{name}.weight"] = full
        found["from_embeddings.weight"] = model.from_embeddings.weight.grad
        return found


def test_accumulated_micro_batches_give_tables_and_layers_the_gradient_of_the_whole_batch() -> None:
    alone = deepfm(0, False)
    categorical, dense, labels = global_batch(0, 12)
    F.binary_cross_entropy_with_logits(alone(categorical, dense), labels).backward()
    for found in launch(accumulate, 2):
        for name, gradient in found.items():
            close(gradient, alone.get_parameter(name).grad, name)


def train_row_wise_state(strategy: str, sparse: bool) -> tuple[Tensor, int]:
    with dtlab.world() as w:
        table = full_table(sparse=sparse)
        if strategy:
            table = shard_embeddings(table, strategy)
        optimizer = RowWiseAdagrad(table.parameters(), lr=0.1)
        for step in range(3):
            categorical = global_batch(step, 1 if step == 1 else 9)[0][w.rank :: w.size]
            optimizer.zero_grad()
            ((table(categorical) - categorical.unsqueeze(2).double()) ** 2).sum().mul(w.size).backward()
            optimizer.step()
        full = table.full_weight() if strategy else table.weight.detach()
        return full, sum(state["sum"].nbytes for state in optimizer.state.values())


@pytest.mark.parametrize("sparse", [False, True])
def test_row_wise_adagrad_of_the_own_rows_equals_one_process_with_one_number_a_row(sparse: bool) -> None:
    ((expected, state_bytes),) = launch(train_row_wise_state, 1, "", False)
    assert state_bytes == 8 * sum(CARDINALITIES), "float64"
    results = launch(train_row_wise_state, 2, "row_wise_cyclic", sparse)
    for full, _ in results:
        close(full, expected, "table")
    assert sum(own for _, own in results) == state_bytes


def move_between_layouts() -> dict[str, Tensor]:
    with dtlab.world() as w:
        first = shard_embeddings(deepfm(0, False), "row_wise")
        state = full_state(first)
        for strategy in ("row_wise_cyclic", MIXED, "table_wise", "row_wise_dtensor"):
            other = shard_embeddings(deepfm(w.rank + 1, False), strategy)
            load_full_state(other, state)
            state = full_state(other)
        plain = deepfm(9, False)
        plain.load_state_dict(state)
        return plain.state_dict()


def test_whole_tables_move_from_one_layout_to_the_next() -> None:
    expected = deepfm(0, False).state_dict()
    for state in launch(move_between_layouts, 4):
        assert list(state) == list(expected)
        assert all(torch.equal(state[name], expected[name]) for name in expected)


def replicas() -> dict[str, Traffic]:
    with dtlab.world() as w:
        found = {}
        for name, sparse in (("dense", False), ("sparse", True)):
            table = nn.Sequential(nn.Embedding(300, 5, sparse=sparse))
            model = data_parallel(table, w)
            for _ in range(3):  # in the second forward DDP tells the ranks its buckets
                table.zero_grad()
                with traffic() as found[name]:
                    model(torch.tensor([1, 1, 7])).sum().backward()
        return found


def test_bytes_of_replicated_tables_follow_their_formulas() -> None:
    for found in launch(replicas, 4):
        assert found["dense"].bytes == dense_bytes(300, 5, 4)
        assert found["sparse"].bytes == sparse_bytes(3, 5, 4), "duplicates count"


def refusals() -> dict[str, str]:
    with dtlab.world():
        found = {}
        for name, call in {
            "padding": lambda: RowWise(nn.Embedding(5, 4, padding_idx=0)),
            "norm": lambda: ColumnWise(nn.Embedding(5, 4, max_norm=1.0)),
            "columns": lambda: ColumnWise(nn.Embedding(5, 1)),
            "a number a row": lambda: RowWiseAdagrad(ColumnWise(nn.Embedding(5, 4)).parameters()),
            "empty part": lambda: DTensorRows(nn.Embedding(1, 4)),
            "dtensor": lambda: DTensorRows(nn.Embedding(5, 4, sparse=True)),
            "name": lambda: shard_embeddings(deepfm(0, False), {"embeddings": "row_wise"}),
            "strategy": lambda: shard_embeddings(deepfm(0, False), "rowwise"),
            "shape": lambda: RowWise(nn.Embedding(5, 4)).load_full(torch.zeros(6, 4)),
            "checkpoint": lambda: state_of("model", shard_embeddings(deepfm(0, False))),
            "export": lambda: export_model(shard_embeddings(deepfm(0, False)), "model.safetensors"),
            "field": lambda: shard_embeddings(deepfm(0, False)).embedding(torch.tensor([[0, 2, 0]])),
        }.items():
            with pytest.raises(dtlab.UserError) as caught:
                call()
            found[name] = str(caught.value)
        return found


def test_what_cannot_be_sharded_is_refused_with_the_name_and_the_way_out() -> None:
    found = launch(refusals, 2)[0]
    assert found["padding"].startswith("padding_idx: 0")
    assert found["norm"].startswith("max_norm: 1.0")
    assert "cut by columns" in found["a number a row"]
    assert "row_wise" in found["a number a row"]
    assert found["columns"] == "dim: 1 columns for 2 ranks leave some without any; hold this table row_wise"
    assert found["empty part"].startswith("rows: 1 in equal blocks leave rank 1 without any")
    assert found["dtensor"].startswith("sparse: DTensor has no sparse gradients")
    assert found["name"] == "strategy: no table 'embeddings' in the model; it has embedding, first_order"
    assert found["strategy"].startswith("strategy: 'rowwise' for 'embedding'; take one of data_parallel,")
    assert found["shape"] == "weight: shape (6, 4), the table is (5, 4); give the whole table"
    assert found["checkpoint"].startswith("embedding.weight: every rank holds another part of it")
    assert found["export"] == found["checkpoint"]
    assert "full_state(model)" in found["export"]
    assert found["field"].startswith("categorical: index 2 in field 1 of row 0 is outside 0..1")


def clipped_norms() -> dict[str, Any]:
    with dtlab.world() as w:
        found = {}
        for name, strategy, sparse in (
            ("rows", "row_wise", False),
            ("sparse rows", "row_wise_cyclic", True),
            ("columns", MIXED, False),
            ("dtensor", "row_wise_dtensor", False),
        ):
            model = shard_embeddings(deepfm(0, sparse), strategy)
            wrapped = data_parallel(model, w)
            categorical, dense, labels = (column[w.rank :: w.size] for column in global_batch(0, 12))
            loss = F.binary_cross_entropy_with_logits(wrapped(categorical, dense), labels)
            loss.backward()
            norm = total_norm(model.parameters())
            clip_by_norm(model.parameters(), 0.01, norm)
            found[name] = (norm, total_norm(model.parameters()))
        table = shard_embeddings(nn.ModuleDict({"table": nn.Embedding(2, 1).double()}), "row_wise")["table"]
        replica = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        table.weight.grad = torch.full((1, 1), 3.0 + w.rank, dtype=torch.float64)
        found["shards alone"] = total_norm([table.weight])
        replica.grad = torch.full((1,), 12.0, dtype=torch.float64)
        found["replica once"] = total_norm([table.weight, replica])
        if w.rank:
            table.weight.grad = None
        found["no gradient on rank 1"] = total_norm([table.weight])
        if not w.rank:
            table.weight.grad.fill_(float("nan"))
        found["nan on rank 0"] = total_norm([table.weight, replica])
        return found


def test_the_norm_counts_every_shard_and_every_replica_once_on_every_rank() -> None:
    alone = deepfm(0, False)
    categorical, dense, labels = global_batch(0, 12)
    F.binary_cross_entropy_with_logits(alone(categorical, dense), labels).backward()
    expected = total_norm(alone.parameters())
    for found in launch(clipped_norms, 2):
        assert found.pop("shards alone") == 5.0, "shards of norm 3 and 4"
        assert found.pop("replica once") == 13.0, "and a replica of norm 12"
        assert found.pop("no gradient on rank 1") == 3.0
        assert found.pop("nan on rank 0").isnan(), "every rank must skip the step"
        for name, (norm, clipped) in found.items():
            close(norm, expected, name)
            assert float(clipped) == pytest.approx(0.01, rel=1e-3), name


def skewed_loads() -> dict[str, int]:
    with dtlab.world() as w:
        zipf = 1 / torch.arange(1, 1001, dtype=torch.float64)
        indices = zipf.multinomial(200, replacement=True, generator=torch.Generator().manual_seed(w.rank))
        loads = {}
        for name, layout in (("blocks", None), ("cyclic", Cyclic(1000, w.size))):
            table = RowWise(nn.Embedding(1000, 2), layout=layout)
            table(indices)
            loads[name] = sum(table.asked_by)
        return loads


def test_cyclic_rows_balance_a_vocabulary_sorted_by_frequency_and_blocks_do_not() -> None:
    results = launch(skewed_loads, 4)
    for name, least, most in (("blocks", 1.5, 4.0), ("cyclic", 1.0, 1.2)):
        loads = [found[name] for found in results]
        assert least <= max(loads) / (sum(loads) / 4) <= most, loads
        assert name == "cyclic" or loads[0] == max(loads)


def test_in_a_world_of_one_the_model_stays_as_it_is() -> None:
    model = deepfm(0, False)
    assert shard_embeddings(model) is model
    assert type(model.embedding) is FieldEmbedding
