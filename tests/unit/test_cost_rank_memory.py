"""Bytes of a rank under each way to share a model out: states to the byte, the rest as stated."""

import dataclasses
import itertools
from typing import Any

import pytest

from dtlab.cost.builders import recommender, transformer
from dtlab.cost.layer_bytes import layer_bytes
from dtlab.cost.memory import training_bytes
from dtlab.cost.pipeline import stage_parameters
from dtlab.cost.presets import GPT_3, GPT_320M, LLAMA_7B, LLAMA_70B, PRESETS, RESNET_50
from dtlab.cost.programs import KEMPNER_FORGE, MEGATRON, NANOTRON, TORCH
from dtlab.cost.rank_memory import fullest, peak_bytes, rank_memory
from dtlab.cost.stages import parts, stages
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError

STATES = ("parameters", "gradients", "optimizer")
SEVEN = dataclasses.replace(LLAMA_7B, parameters=7_000_000_000)


def made(**given: Any) -> Strategy:
    return Strategy(**given)


def states(strategy: Strategy, model=SEVEN) -> float:  # type: ignore[no-untyped-def]
    (bill,) = rank_memory(model, strategy)
    return sum(bill.items[name] for name in STATES) / 1e9


@pytest.mark.parametrize(
    ("fp32_gradients", "expected"),
    [(False, [112.0, 38.5, 26.25, 14.0]), (True, [126.0, 52.5, 28.0, 15.75])],
)
def test_states_of_7_billion_parameters_over_8_ranks(fp32_gradients: bool, expected: list[float]) -> None:
    given = [{"dp_replicate": 8, "zero": zero} for zero in (0, 1, 2)] + [{"dp_shard": 8, "zero": 3}]
    found = [states(made(**one, fp32_gradients=fp32_gradients)) for one in given]
    assert found == expected


def test_accumulation_without_sync_keeps_a_whole_gradient_in_fp32() -> None:
    waits = {"zero": 3, "num_micro_batches": 4, "sync_every_micro_batch": False, "precision": "bf16"}
    for shards in (2, 8, 64):
        (bill,) = rank_memory(SEVEN, made(dp_shard=shards, **waits))
        assert bill.items["gradients"] == 4 * 7_000_000_000
        assert bill.items["parameters"] + bill.items["optimizer"] == 6 * 7_000_000_000 // shards
        (once,) = rank_memory(SEVEN, made(dp_shard=shards, **waits | {"num_micro_batches": 1}))
        assert once.items["gradients"] == 2 * 7_000_000_000 // shards
    (in_bf16,) = rank_memory(SEVEN, made(dp_shard=8, **waits, fp32_reduce=False))
    assert in_bf16.items["gradients"] == 2 * 7_000_000_000


def test_hybrid_shards_within_replicas() -> None:
    hybrid = states(Strategy(dp_replicate=4, dp_shard=2, zero=3))
    assert hybrid == states(Strategy(dp_shard=2, zero=3)) == 4 * states(Strategy(dp_shard=8, zero=3))


def test_fsdp_gathers_two_units_or_all() -> None:
    def buffers(**given: bool) -> int:
        return rank_memory(LLAMA_7B, Strategy(dp_shard=8, zero=3, **given))[0].items["buffers"]

    unit = parts(LLAMA_7B)
    assert unit.units == unit.embedding + unit.head + unit.layer
    kept = buffers(reshard_after_forward=False) - buffers()
    assert kept == 2 * (LLAMA_7B.parameters - unit.units)


def test_a_pipeline_on_fsdp_keeps_weights_and_gradients_whole() -> None:
    strategy = Strategy(dp_shard=4, zero=3, pp=2, num_micro_batches=8, precision="bf16", recompute="full")
    first = rank_memory(LLAMA_7B, strategy)[0]
    held = stages(LLAMA_7B, 2)[0].num_parameters
    assert first.items["gradients"] == 4 * held
    assert first.items["buffers"] >= 2 * held
    resharding = dataclasses.replace(TORCH, pipeline_keeps=False)
    assert rank_memory(LLAMA_7B, strategy, program=resharding)[0].items["gradients"] == 2 * held / 4


def test_no_rank_holds_more_with_more_ranks_to_share() -> None:
    for name in ("tp", "pp"):
        totals = [
            peak_bytes(
                LLAMA_7B, Strategy(**{name: degree}, num_micro_batches=8, sequence_parallel=name == "tp")
            )
            for degree in (1, 2, 4, 8)
        ]
        assert all(more > less for more, less in itertools.pairwise(totals)), name


def test_a_gpt_layer_is_korthikantis() -> None:
    h, tokens = 12288, 2048
    for tp, sequence, bytes_of_h in ((1, False, 34), (8, False, 10 + 24 / 8), (8, True, 34 / 8)):
        strategy = Strategy(tp=tp, sequence_parallel=sequence)
        assert layer_bytes(GPT_3, strategy, MEGATRON).kept == bytes_of_h * h * tokens
    gathered = layer_bytes(GPT_3, Strategy(tp=8, sequence_parallel=True), TORCH).kept
    assert gathered == (4 + 30 / 8) * h * tokens, "torch's own plan keeps the gathered inputs"


def test_grouped_queries_keep_fewer_keys_and_values() -> None:
    kept = layer_bytes(LLAMA_70B, Strategy(), TORCH).kept / 4096
    assert kept == 4 * 8192 + 4 * 8192 + 2 * 8192 * (2 + 2 / 8) + 8 * 28672 + 4 * 64


def test_full_recomputation_keeps_inputs_and_one_layer() -> None:
    plain, full = (rank_memory(LLAMA_7B, made(recompute=word))[0] for word in ("none", "full"))
    one = layer_bytes(LLAMA_7B, Strategy(), TORCH)
    saved = plain.items["activations"] - full.items["activations"]
    assert saved == 31 * one.kept - 32 * one.stream
    assert plain.items["logits"] == full.items["logits"]


def test_in_flight_micro_batches_by_schedule() -> None:
    def activations(rank: int, **given: object) -> float:
        strategy = made(pp=4, num_micro_batches=8, **given)
        return rank_memory(LLAMA_7B, strategy)[rank].items["activations"]

    one = layer_bytes(LLAMA_7B, Strategy(), TORCH)
    in_stage = 8 * one.kept + one.stream
    assert activations(0, schedule="gpipe") == 8 * in_stage
    assert [activations(rank) for rank in (0, 1, 2)] == [4 * in_stage, 3 * in_stage, 2 * in_stage]
    interleaved = activations(0, schedule="interleaved", stages_per_rank=2)
    assert interleaved == 11 * 4 * one.kept + 11 * one.stream


def test_gpipe_keeps_the_log_probabilities_of_every_micro_batch() -> None:
    given = {"pp": 2, "num_micro_batches": 4}
    last = {word: rank_memory(LLAMA_7B, made(**given, schedule=word))[-1] for word in ("gpipe", "1f1b")}
    logits = 4096 * 32000
    assert last["1f1b"].items["logits"] == 12 * logits
    assert last["gpipe"].items["logits"] == (12 + 3 * 4) * logits


def test_logits_are_cut_when_the_loss_is_parallel() -> None:
    for given, per_logit in (({}, 12 / 4), ({"loss_parallel": False}, 12), ({"compiled": True}, 8 / 4)):
        (bill,) = rank_memory(LLAMA_7B, made(tp=4, **given))
        assert bill.items["logits"] == per_logit * 4096 * 32000


def test_stages_hold_the_model_once_and_a_tied_matrix_twice() -> None:
    assert [stage.num_parameters for stage in stages(GPT_320M, 2)] == stage_parameters("GPT 320M", 2)
    for program in (TORCH, NANOTRON, KEMPNER_FORGE):
        for pp in (2, 3, 8):
            held = stages(LLAMA_7B, pp, 1, program)
            assert sum(stage.num_parameters for stage in held) == LLAMA_7B.parameters
            assert sum(stage.layers for stage in held) == 32
    assert stages(GPT_320M)[0].num_parameters == GPT_320M.parameters


def test_cut_by_compute_the_head_pushes_layers_to_the_first_stages() -> None:
    eight = transformer(32, 4096, 131072, 4096, heads=32, ffn=14336)
    assert [stage.layers for stage in stages(eight, 2, 1, NANOTRON)] == [18, 14]
    assert stages(eight, 32, 1, NANOTRON)[0].layers == 2
    assert [stage.layers for stage in stages(eight, 3, 1, KEMPNER_FORGE)] == [11, 11, 10]


def test_what_tensor_parallelism_leaves_whole_is_whole() -> None:
    cut, whole = parts(LLAMA_7B, 8), parts(LLAMA_7B, 8, KEMPNER_FORGE)
    assert cut.embedding == LLAMA_7B.vocab * 4096 / 8
    assert whole.embedding == LLAMA_7B.vocab * 4096
    assert cut.layer == (parts(LLAMA_7B).layer - 2 * 4096) / 8 + 2 * 4096


def test_outputs_wait_in_nanotron_and_not_with_one_rank() -> None:
    waiting = dataclasses.replace(NANOTRON, layers_ahead=0)

    def extra(**given: int) -> float:
        strategy = Strategy(sequence_parallel=True, **given)
        return peak_bytes(LLAMA_7B, strategy, NANOTRON) - peak_bytes(LLAMA_7B, strategy, waiting)

    one = 2 * 4096 * 4096
    assert extra(tp=1, num_micro_batches=4) == 0
    assert extra(tp=8, num_micro_batches=4) == 2 * 32 * one
    assert extra(tp=8, num_micro_batches=1) == 32 * one
    assert extra(tp=8, pp=4, num_micro_batches=8) == 32 * one


def test_ddp_buckets_are_a_copy_of_the_gradients() -> None:
    plain = dataclasses.replace(NANOTRON, ddp_buckets=False)
    for strategy, copied in (
        (Strategy(dp_replicate=2), 2),
        (Strategy(dp_replicate=2, zero=2), 0),
        (Strategy(), 0),
    ):
        difference = peak_bytes(LLAMA_7B, strategy, NANOTRON) - peak_bytes(LLAMA_7B, strategy, plain)
        assert difference == copied * LLAMA_7B.parameters
    fp32 = Strategy(dp_replicate=2, precision="fp32")
    assert peak_bytes(LLAMA_7B, fp32, NANOTRON) - peak_bytes(LLAMA_7B, fp32, plain) == 4 * LLAMA_7B.parameters


@pytest.mark.parametrize(
    "name", [name for name, found in PRESETS.items() if found.family in ("bert", "resnet", "deepfm")]
)
def test_on_one_rank_it_agrees_with_the_bill_of_one_card(name: str) -> None:
    for precision in ("fp32", "amp"):
        (bill,) = rank_memory(name, made(precision=precision, micro_batch=4))
        alone = training_bytes(name, 4, precision=precision)  # type: ignore[arg-type]
        assert bill.total == pytest.approx(alone.total, rel=0.01)


def test_fsdp_shards_a_table_and_gathers_it_whole() -> None:
    model = recommender(1_000_000, 26, 256, num_dense=13)
    alone, sharded = (
        rank_memory(model, made(**given, micro_batch=1024, precision="fp32"))[0]
        for given in ({}, {"dp_shard": 4, "zero": 3})
    )
    assert (alone.largest, sharded.largest) == ("optimizer", "buffers")
    assert sharded.items["optimizer"] == round(alone.items["optimizer"] / 4)
    assert sharded.items["buffers"] > 3 * alone.items["parameters"] - 1


def test_peak_is_the_fullest_rank_of_the_bills() -> None:
    for model, given in itertools.product(
        (LLAMA_7B, LLAMA_70B, GPT_320M, RESNET_50),
        (
            {"dp_shard": 8, "zero": 3}, {"dp_replicate": 8, "zero": 1, "precision": "amp"},
            {"pp": 4, "num_micro_batches": 6, "tp": 2, "sequence_parallel": True},
            {"pp": 4, "num_micro_batches": 8, "schedule": "zbv", "stages_per_rank": 2},
            {"pp": 8, "num_micro_batches": 8, "schedule": "gpipe", "recompute": "full"},
        ),
    ):  # fmt: skip
        strategy = made(**given)
        if model.layers == 0 and strategy.pp > 1:
            continue
        for program in (TORCH, NANOTRON, KEMPNER_FORGE):
            _, bill = fullest(rank_memory(model, strategy, program=program))
            assert peak_bytes(model, strategy, program) == pytest.approx(bill.total, abs=8)


def test_unknown_activations_stay_unknown() -> None:
    (bill,) = rank_memory("S3 multimodal 320M", Strategy(dp_replicate=8))
    assert "activations" not in bill.items
    assert bill.verdict(10**15) == "risky"


def test_context_comes_on_top() -> None:
    plain, seen = (rank_memory("BERT-large", Strategy(), context_gib=size)[0] for size in (0.0, 1.3))
    assert seen.total - plain.total == seen.items["context"] == round(1.3 * 2**30)


@pytest.mark.parametrize("seq_len", [0, 1.5, True])
def test_tokens_are_a_count(seq_len: object) -> None:
    with pytest.raises(UserError, match="seq_len"):
        rank_memory("Llama 7B", made(), seq_len=seq_len)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(UserError, match="tp = 3 does not divide the 32 heads"):
        rank_memory("Llama 7B", Strategy(tp=3))
