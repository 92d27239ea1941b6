"""The plan of an embedding table: expectations against drawn batches, and the choices that follow."""

import random

import pytest

from dtlab.cost.embedding import (
    column_wise_bytes,
    columns_of,
    deal_tables,
    dense_bytes,
    row_wise_bytes,
    sparse_bytes,
)
from dtlab.cost.embedding_plan import TablePlan, expected_unique, plan_table
from dtlab.errors import UserError
from dtlab.models.deepfm import DeepFM
from dtlab.parallel.embedding import plan_embeddings


def option_bytes(plan: TablePlan) -> dict[str, int]:
    return {option.name: option.bytes_per_step for option in plan.options}


def draw_requests(
    rows: int, samples: int, ranks: int, skew: float, cyclic: bool, seed: int
) -> list[list[int]]:
    draw, block = random.Random(seed), -(-rows // ranks)
    weights = [(i + 1) ** -skew for i in range(rows)]
    requests = []
    for _ in range(ranks):
        wanted = set(draw.choices(range(rows), weights, k=samples))
        owners = [row % ranks if cyclic else row // block for row in wanted]
        requests.append([owners.count(rank) for rank in range(ranks)])
    return requests


@pytest.mark.parametrize("skew", [0.0, 0.6, 1.0, 1.5])
def test_expected_bytes_are_those_of_drawn_batches(skew: float) -> None:
    rows, dim, samples, ranks, draws = 3000, 6, 200, 4, 15
    planned = option_bytes(plan_table(rows, dim, samples=samples, ranks=ranks, skew=skew))
    blocks = cyclic = columns = 0.0
    for seed in range(draws):
        requests = draw_requests(rows, samples, ranks, skew, False, seed)
        blocks += row_wise_bytes(requests, 0, dim)  # rank 0 has the popular rows
        columns += column_wise_bytes([sum(line) for line in requests], 0, dim)
        requests = draw_requests(rows, samples, ranks, skew, True, seed)
        cyclic += sum(row_wise_bytes(requests, rank, dim) for rank in range(ranks)) / ranks
    assert planned["row_wise"] == pytest.approx(blocks / draws, rel=0.05)
    assert planned["row_wise_cyclic"] == pytest.approx(cyclic / draws, rel=0.05)
    assert planned["column_wise"] == pytest.approx(columns / draws, rel=0.05)
    assert planned["data_parallel, dense"] == dense_bytes(rows, dim, ranks)
    assert planned["data_parallel, sparse"] == sparse_bytes(samples, dim, ranks)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 2.0])
def test_grouping_rows_keeps_the_expectation(skew: float) -> None:
    rows, lookups = 20_000, 700
    weights = [(i + 1) ** -skew for i in range(rows)]
    total = sum(weights)
    exact = sum(1 - (1 - weight / total) ** lookups for weight in weights)
    assert expected_unique(rows, lookups, skew) == pytest.approx(exact, rel=1e-4)


def test_the_choice_follows_size_batch_skew_and_memory() -> None:
    def best(rows: int, samples: int, **given: float) -> str:
        return plan_table(rows, 16, samples=samples, ranks=4, **given).best.name  # type: ignore[arg-type]

    assert best(24, 4096) == "data_parallel, dense", "a small table costs less than asking for it"
    assert best(1_000_000, 512) == "row_wise"
    assert best(1_000_000, 512, skew=1.0) == "row_wise_cyclic", "blocks put the hot rows on rank 0"
    assert best(24, 1) != best(24, 4096), "one sample touches one row"
    fewest = plan_table(24, 16, samples=4096, ranks=4).best.memory_bytes
    assert best(24, 4096, memory_bytes=fewest - 1) != "data_parallel, dense"


def test_the_trap_dense_bytes_grow_with_the_table_and_the_exchanged_ones_with_the_batch() -> None:
    small, large = (option_bytes(plan_table(rows, 16, samples=64, ranks=4)) for rows in (10**6, 10**7))
    assert large["data_parallel, dense"] == 10 * small["data_parallel, dense"]
    for name in ("row_wise", "column_wise", "data_parallel, sparse"):
        assert large[name] == pytest.approx(small[name], rel=1e-3)
    double = option_bytes(plan_table(10**6, 16, samples=128, ranks=4))
    assert double["data_parallel, dense"] == small["data_parallel, dense"]
    assert double["row_wise"] == pytest.approx(2 * small["row_wise"], rel=1e-2)


def test_fields_of_one_table_are_planned_together_and_dealt_as_the_ranks_deal_them() -> None:
    fields = [900, 500, 500, 10]
    plan = plan_table(fields, 4, samples=32, ranks=2)
    assert plan.unique_rows == pytest.approx(sum(expected_unique(size, 32) for size in fields))
    assert deal_tables(fields, 2) == [0, 1, 1, 0]
    by_name = {option.name: option for option in plan.options}
    busiest = 2 * (2 * expected_unique(500, 32)) * 16  # both ranks ask for rows of two fields of 500
    assert by_name["table_wise"].memory_bytes == round(1000 * 4 * 12 + busiest)


def test_plans_of_a_model_name_its_tables_and_print_every_option() -> None:
    plans = plan_embeddings(DeepFM([100_000, 7], 3, dim=8), samples=256, ranks=4, skew=1.0)
    assert list(plans) == ["embedding", "first_order"]
    lines = plans["embedding"].lines()
    assert len(lines) == 6
    assert sum("<- least bytes" in line for line in lines) == 1
    assert plans["first_order"].options[0].strategy != "column_wise", "one column cannot be cut"
    tight = plan_embeddings(DeepFM([100_000, 7], 3, dim=8), samples=256, ranks=4, memory_bytes=4e6)
    assert "does not fit" in "".join(tight["embedding"].lines())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": 0}, "rows: 0; give a whole number of 1 or more"),
        ({"rows": []}, "rows: no field"),
        ({"samples": 0}, "samples: 0; give"),
        ({"skew": -1.0}, "skew: -1.0; give a number of 0 or more"),
        ({"memory_bytes": float("nan")}, "memory_bytes: nan"),
    ],
)
def test_numbers_that_cannot_be_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_table(**({"rows": 10, "dim": 4, "samples": 5, "ranks": 2} | given))  # type: ignore[arg-type]


def test_a_budget_that_nothing_meets_names_the_smallest_way() -> None:
    with pytest.raises(UserError, match=r"memory_bytes: no way .*row_wise.* needs [\d,]+ bytes"):
        plan_table(1000, 3, samples=5, ranks=4, memory_bytes=10).best  # noqa: B018


def test_no_column_and_no_table_is_lost_or_dealt_twice() -> None:
    for dim, ranks in ((10, 4), (4, 4), (3, 5), (16, 1)):
        assert sum(columns_of(dim, ranks)) == dim
    assert sorted(set(deal_tables([1] * 7, 3))) == [0, 1, 2]
    with pytest.raises(UserError, match="loads: 1 numbers for 2 ranks"):
        deal_tables([1], 2, [0])
    with pytest.raises(UserError, match="requests: lines of"):
        row_wise_bytes([[1], [2, 3]], 0, 4)
    with pytest.raises(UserError, match="rank: 2"):
        row_wise_bytes([[0, 1], [2, 3]], 2, 4)
