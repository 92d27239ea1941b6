"""More shards, recomputation or less work: which way memory and time must move in any configuration."""

import random
from dataclasses import replace

import pytest

from dtlab.cost.activations import activation_bytes
from dtlab.cost.builders import transformer
from dtlab.cost.machines import machine
from dtlab.cost.memory import MemoryBill
from dtlab.cost.presets import BERT_LARGE, LLAMA_7B, Preset
from dtlab.cost.rank_memory import rank_memory
from dtlab.cost.stages import parts, stages
from dtlab.cost.step_time import Parts, StepModel
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError

Drawn = tuple[Preset, Strategy]


def drawn(seed: int) -> Drawn:
    """A model and a strategy that can be."""
    one = random.Random(seed)
    while True:
        heads = one.choice([4, 8, 16, 32])
        hidden, gated = heads * one.choice([64, 128]), one.random() < 0.6
        shape = (one.choice([1, 2, 3, 5, 8, 16, 32]), hidden, one.choice([32000, 131072]), 2048)
        model = transformer(*shape, heads=heads, gated=gated, tied=one.random() < 0.5)
        model = BERT_LARGE if one.random() < 0.1 else model
        degrees = ([1, 1, 2, 4, 8], [1, 1, 2, 8], [0, 1, 2, 3], [2, 16])
        tp, pp, zero, ranks = (one.choice(some) for some in degrees)
        schedule = one.choice(["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"]) if pp > 1 else "1f1b"
        try:
            strategy = Strategy(
                dp_shard=ranks if zero == 3 else 1, dp_replicate=1 if zero == 3 else ranks, tp=tp, pp=pp,
                zero=zero, micro_batch=one.choice([1, 2, 4, 8]), num_micro_batches=one.choice([1, 2, 8, 16]),
                schedule=schedule, stages_per_rank=2 if schedule in ("interleaved", "zbv") else 1,
                recompute=one.choice(["none", "selective", "full"]),
                precision=one.choice(["fp32", "amp", "bf16-mixed", "bf16"]), sequence_parallel=tp > 1,
                reshard_after_forward=one.random() < 0.7, compiled=one.random() < 0.3,
            )  # fmt: skip
            rank_memory(model, strategy)
        except UserError:
            continue
        return model, strategy


def more(model: Preset, less: Strategy, greater: Strategy, item: str = "", **given: int) -> None:
    """Every rank of `greater` needs at least what it needs under `less`."""

    def bytes_of(bill: MemoryBill) -> float:
        return bill.items.get(item, 0) if item else bill.total

    pairs = zip(rank_memory(model, less), rank_memory(model, greater, **given), strict=True)
    for rank, (before, after) in enumerate(pairs):
        assert bytes_of(after) >= bytes_of(before) - 4, (rank, less, greater, before.items, after.items)


@pytest.mark.parametrize("seed", range(60))
def test_memory_moves_the_way_it_must(seed: int) -> None:
    model, one = drawn(seed)
    if one.zero == 3:
        more(model, replace(one, dp_shard=2 * one.dp_shard), one)
    elif one.zero:
        more(model, replace(one, dp_replicate=2 * one.dp_replicate), one)
    if one.zero < 2:
        more(model, replace(one, zero=one.zero + 1), one)  # type: ignore[arg-type]
    more(model, one, replace(one, micro_batch=one.micro_batch + 1))
    more(model, one, replace(one, micro_batch=one.micro_batch + 1), "activations")
    more(model, one, one, seq_len=model.seq_len + 8)
    more(model, replace(one, recompute="full"), replace(one, recompute="none"))
    more(model, replace(one, recompute="selective"), replace(one, recompute="none"))


@pytest.mark.parametrize("seed", range(60))
def test_a_pipeline_holds_every_parameter_once(seed: int) -> None:
    model, one = drawn(seed)
    held = stages(model, one.pp)
    twice = parts(model).shared if one.pp > 1 else 0  # a tied matrix is in both ends
    assert sum(stage.num_parameters for stage in held) == model.parameters + twice
    assert sum(stage.layers for stage in held) == model.layers


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_tensor_parallel_ranks_hold_every_matrix_once_and_every_norm_each(tp: int) -> None:
    norms = 32 * 2 * 4096 + 4096
    held = sum(stage.num_parameters for stage in stages(LLAMA_7B, 4, tp))
    assert tp * held == LLAMA_7B.parameters + (tp - 1) * norms


def computing(parts_of_step: Parts) -> float:
    return sum(parts_of_step[:3])


@pytest.mark.parametrize("seed", range(60))
def test_time_moves_the_way_it_must(seed: int) -> None:
    model, one = drawn(seed)
    step = StepModel(model, machine("ml.p5.48xlarge"))
    now, least = step.parts(one), 1 - 1e-9
    again, plain = (step.parts(replace(one, recompute=word)) for word in ("full", "none"))
    assert computing(again) >= least * computing(plain)
    assert sum(again) >= least * sum(plain)
    assert step.seconds(replace(one, micro_batch=one.micro_batch + 1)) >= least * sum(now)
    assert step.seconds(replace(one, num_micro_batches=2 * one.num_micro_batches)) >= least * sum(now)
    if one.num_micro_batches > 1:
        name = "dp_shard" if one.zero == 3 else "dp_replicate"
        larger = {name: 2 * getattr(one, name), "num_micro_batches": one.num_micro_batches // 2}
        assert computing(step.parts(replace(one, **larger))) <= computing(now) / least


def test_messages_hide_behind_launches_as_they_do_behind_products() -> None:
    step = StepModel(LLAMA_7B, machine("ml.p5.48xlarge"), seq_len=256)
    small, larger = (step.parts(Strategy(dp_shard=64, zero=3, tp=8, micro_batch=size)) for size in (1, 2))
    assert small[2] > larger[2] > 0, "both wait for their kernels"
    assert small[5] == pytest.approx(larger[5])


def test_recomputing_a_stage_without_blocks_keeps_nothing_of_a_block() -> None:
    model = transformer(2, 1024, 131072, 2048, heads=8)
    none, full = (
        rank_memory(model, Strategy(pp=4, num_micro_batches=4, recompute=word)) for word in ("none", "full")
    )
    assert stages(model, 4)[0].layers == 0
    assert full[0].items == none[0].items


def test_recomputing_a_single_block_saves_nothing_and_adds_nothing() -> None:
    model = transformer(1, 1024, 32000, 2048, heads=8)
    none, full = (rank_memory(model, Strategy(recompute=word))[0].items for word in ("none", "full"))
    assert none == full
    assert activation_bytes(model, 1) == activation_bytes(model, 1, recompute="full")


def test_the_layer_that_is_recomputed_has_its_attention_scores() -> None:
    full = rank_memory(BERT_LARGE, Strategy(recompute="full", micro_batch=4))[0].items["activations"]
    whole = rank_memory(replace(BERT_LARGE, layers=1), Strategy(micro_batch=4))[0].items["activations"]
    assert full > whole, "one layer with all it keeps, and the inputs of the others"
