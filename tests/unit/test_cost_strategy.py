"""A strategy that cannot be is refused by field, value and way out; degrees multiply to the world size."""

import dataclasses

import pytest

from dtlab.cost.builders import recommender, transformer
from dtlab.cost.presets import LLAMA_70B, RESNET_50, preset
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tp": 0}, r"tp = 0: give a whole number"),
        ({"pp": True}, r"pp = True"),
        ({"micro_batch": 1.5}, r"micro_batch = 1.5"),
        ({"zero": 4}, r"zero = 4 is unknown"),
        ({"zero": True}, r"zero = True is unknown"),
        ({"schedule": "dualpipe"}, r"schedule = 'dualpipe' is unknown: use one of 'gpipe'"),
        ({"recompute": "some"}, r"recompute = 'some'"),
        ({"sequence_parallel": 1}, r"sequence_parallel = 1: use True or False"),
        ({"dp_shard": 8, "zero": 1}, r"dp_shard = 8 and zero = 1.*zero = 3"),
        ({"dp_replicate": 8, "zero": 3}, r"zero = 3 with dp_shard = 1.*dp_shard = 8"),
        ({"precision": "bf16", "fp32_gradients": True}, r"fp32_gradients = True.*bf16-mixed"),
        ({"stages_per_rank": 2}, r"stages_per_rank = 2 with pp = 1"),
        ({"pp": 4, "schedule": "interleaved"}, r"stages_per_rank = 1 with schedule = 'interleaved': give 2"),
        ({"pp": 4, "stages_per_rank": 2}, r"stages_per_rank = 2 with schedule = '1f1b': give 1"),
        ({"pp": 4, "schedule": "zbv", "stages_per_rank": 3}, r"schedule = 'zbv': give 2"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Strategy(**given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_every_field_is_validated() -> None:
    for field in dataclasses.fields(Strategy):
        with pytest.raises(UserError, match=field.name):
            Strategy(**{field.name: object()})


def test_degrees_multiply() -> None:
    one = Strategy(dp_replicate=2, dp_shard=4, zero=3, tp=2, pp=3, micro_batch=5, num_micro_batches=7)
    assert (one.dp, one.world_size, one.global_batch) == (8, 48, 280)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tp": 16}, "tp = 16 does not divide the 8 kv_heads of Llama 70B"),
        ({"pp": 83}, "83 stages are more than the 80 layers, embedding and head"),
        ({"pp": 42, "schedule": "interleaved", "stages_per_rank": 2}, "84 stages"),
    ],
)
def test_a_model_is_not_cut_finer_than_it_is(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Strategy(**given).check(LLAMA_70B)  # type: ignore[arg-type]
    Strategy(tp=8, pp=80).check(LLAMA_70B)


def test_a_model_without_layers_is_not_cut() -> None:
    for given in ({"tp": 2}, {"pp": 2}):
        with pytest.raises(UserError, match="ResNet-50 has no equal layers"):
            Strategy(**given).check(RESNET_50)  # type: ignore[arg-type]
    Strategy(dp_shard=8, zero=3).check(RESNET_50)


def test_a_built_transformer_is_the_published_one() -> None:
    for name in ("Llama 7B", "Llama 70B", "GPT-3 175B", "GPT 320M"):
        known = preset(name)
        built = transformer(
            known.layers, known.hidden, known.vocab, known.seq_len, heads=known.heads, ffn=known.ffn,
            kv_heads=known.kv_heads, gated=known.family == "llama", tied=known.tied,
            biases=name == "GPT-3 175B",
        )  # fmt: skip
        assert built.parameters == known.parameters
        assert dataclasses.replace(known, name="", formula="", source="", note="") == dataclasses.replace(
            built, name="", formula="", source="", note=""
        )


def test_a_built_recommender_is_the_published_one() -> None:
    known = preset("S4 DeepFM 1M x 1024")
    built = recommender(1_000_000, 26, 1024, num_dense=13)
    assert built.parameters == known.parameters
    assert built.table_parameters == known.table_parameters


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heads": 7}, "heads = 7 does not divide hidden = 64"),
        ({"heads": 8, "kv_heads": 3}, "kv_heads = 3 does not divide heads = 8"),
        ({"heads": 8, "kv_heads": 2, "gated": False}, "kv_heads = 2 with gated = False"),
        ({"heads": 8, "biases": True}, "biases = True with gated = True"),
        ({"heads": 0}, "heads = 0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        transformer(2, 64, 100, 16, **given)  # type: ignore[arg-type]
