"""Cutting a model into stages: balanced, with the model's names, tied copies named, counted by formula."""

import itertools
import random

import pytest
import torch
from torch import nn

from dtlab.cost.activations import activation_bytes, logit_bytes
from dtlab.cost.builders import transformer
from dtlab.cost.memory import training_bytes
from dtlab.cost.parameters import decoder_units
from dtlab.cost.pipeline import balanced_cuts, stage_parameters, unit_parameters
from dtlab.cost.pipeline_memory import pipeline_bytes
from dtlab.cost.presets import Preset, preset
from dtlab.errors import UserError
from dtlab.models.deepfm import DeepFM
from dtlab.models.gpt import GPT
from dtlab.parallel.split import PipelineParts, split, unit_seconds


def gpt_of(found: Preset) -> GPT:
    with torch.device("meta"):
        return GPT(found.vocab, found.seq_len, found.hidden, found.layers, found.heads, hidden=found.ffn)


def test_two_stages_hold_at_most_55_percent_of_the_320m_model_each():
    model = gpt_of(preset("GPT 320M"))
    whole = model.num_parameters  # before the cut makes the tied matrix two
    assert whole == preset("GPT 320M").parameters == pytest.approx(320e6, rel=0.01)
    parts = split(model, 2)
    assert all(count <= 0.55 * whole for count in parts.num_parameters)
    assert parts.num_parameters == stage_parameters("GPT 320M", 2)


@pytest.mark.parametrize(
    "change", [{}, {"hidden": 16}, {"layers": 7}, {"vocab": 50}, {"ffn": 24}, {"seq_len": 9}]
)
def test_parameters_of_a_stage_equal_the_closed_form_when_one_size_changes(change):
    sizes = {"layers": 5, "hidden": 8, "ffn": 32, "heads": 2, "vocab": 30, "seq_len": 12, **change}
    counts = GPT(
        sizes["vocab"],
        sizes["seq_len"],
        sizes["hidden"],
        sizes["layers"],
        sizes["heads"],
        hidden=sizes["ffn"],
    )
    tiny = Preset(name="tiny", family="gpt", parameters=counts.num_parameters, formula="", source="", **sizes)
    for stages in (1, 2, 3, 4):
        measured = split(gpt_of(tiny), stages).num_parameters
        table = sizes["vocab"] * sizes["hidden"]
        expected = stage_parameters(tiny, stages)
        assert measured == ([expected[0] - table] if stages == 1 else expected)


def test_the_heaviest_stage_is_as_light_as_any_cut_can_make_it():
    draw = random.Random(0)
    for _ in range(60):
        weights = [draw.choice([0, 1, 2, 5, 9]) for _ in range(draw.randint(1, 8))]
        stages = draw.randint(1, len(weights))
        cuts = balanced_cuts(weights, stages)
        assert [start for start, _ in cuts] == [0, *(end for _, end in cuts[:-1])]
        assert cuts[-1][1] == len(weights)
        assert all(start < end for start, end in cuts)
        best = min(
            max(sum(weights[a:b]) for a, b in itertools.pairwise([0, *inner, len(weights)]))
            for inner in itertools.combinations(range(1, len(weights)), stages - 1)
        )
        assert max(sum(weights[start:end]) for start, end in cuts) == best


@pytest.mark.parametrize("stages", [1, 2, 3, 6])
def test_stages_together_are_the_model_with_its_names(stages):
    model = GPT(16, 8, dim=8, num_layers=4, num_heads=2, tied=False)
    tokens = torch.randint(16, (3, 8))
    parts = split(model, stages)
    hidden = tokens
    for stage in parts.stages:
        hidden = stage(hidden)
    torch.testing.assert_close(hidden, model(tokens))
    names = [name for stage in parts.stages for name, _ in stage.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert parts.tied == ()


def test_a_tied_matrix_is_copied_once_and_stays_one_within_a_stage():
    model = GPT(16, 8, dim=8, num_layers=2, num_heads=2)
    parts = split(model, 2)
    first, last = parts.stages
    assert parts.tied == (((0, "embedding.token.weight"), (1, "head.output.weight")),)
    copy, original = last.get_parameter("head.output.weight"), first.get_parameter("embedding.token.weight")
    assert copy is not original
    assert torch.equal(copy, original)
    assert split(GPT(16, 8, dim=8, num_layers=2, num_heads=2), 1).tied == ()


def test_measured_weights_move_the_cut():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    assert [stage.paths for stage in split(model, 2).stages] == [("0", "1"), ("2", "3")]
    assert [stage.paths for stage in split(model, 2, weights=[9, 1, 1, 1]).stages] == [
        ("0",),
        ("1", "2", "3"),
    ]
    seconds = unit_seconds(model, torch.ones(2, 4))
    assert len(seconds) == 4
    assert all(second > 0 for second in seconds)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_models_that_are_no_chain_are_refused_with_a_way_out():
    with pytest.raises(UserError, match=r"DeepFM: one table holds 89% of the parameters.*shard the table"):
        split(DeepFM([10_000], 2), 2)
    with pytest.raises(UserError, match=r"Linear is no chain.*PipelineParts"):
        split(nn.Linear(2, 2), 2)
    assert PipelineParts((nn.Linear(2, 2),)).num_parameters == [6]


@pytest.mark.parametrize(
    ("stages", "weights", "said"),
    [
        (7, None, "num_stages = 7, but the model has 4 units"),
        (0, None, "num_stages = 0"),
        (2, [1, 2], r"weights: 2 for 4 units \(embedding, blocks.0, blocks.1, head\)"),
        (2, [1, 2, float("nan"), 1], "weights = "),
    ],
)
def test_a_split_that_cannot_be_made_is_refused_with_its_numbers(stages, weights, said):
    with pytest.raises(UserError, match=said):
        split(GPT(16, 8, dim=8, num_layers=2, num_heads=2), stages, weights=weights)


def test_memory_of_the_ranks_follows_what_each_holds():
    found = preset("GPT 320M")
    whole = activation_bytes(found, 8)
    by_gpipe, by_1f1b = (pipeline_bytes(found, 2, 4, 8, schedule=name) for name in ("gpipe", "1f1b"))
    for bills, live in ((by_gpipe, (4, 4)), (by_1f1b, (2, 1))):
        for bill, micro_batches in zip(bills, live, strict=True):
            assert bill.items["activations"] == whole * micro_batches / 2  # 12 of 24 blocks
        assert bills[1].items["logits"] == live[1] * logit_bytes(found, 8)
        assert "logits" not in bills[0].items
    counted = sum(bill.items["optimizer"] for bill in by_1f1b)
    assert counted == 8 * sum(unit_parameters(found)), "Adam: 8 bytes a parameter, the tied matrix twice"
    assert max(bill.total for bill in by_1f1b) < training_bytes(found, 32).total / 2


def test_memory_of_a_model_or_schedule_without_a_formula_is_refused():
    with pytest.raises(UserError, match="'zbv': memory is counted for one stage a rank"):
        pipeline_bytes("GPT 320M", 2, 4, 1, schedule="zbv")
    with pytest.raises(UserError, match="'S3 multimodal 320M': stages are counted for tied decoders"):
        pipeline_bytes("S3 multimodal 320M", 2, 4, 1)
    assert len(stage_parameters("GPT-3 175B", 8)) == 8


def test_tensor_parallel_ranks_hold_an_equal_part_of_the_matrices_and_all_of_the_rest():
    whole, half = (decoder_units(2, 8, 10, 4, 16, biases=True, tp=tp) for tp in (1, 2))
    norms, row_biases, positions = 4 * 8, 2 * 8, 4 * 8
    assert [2 * part - all_of_it for part, all_of_it in zip(half, whole, strict=True)] == [
        positions, norms + row_biases, norms + row_biases, 2 * 8,
    ]  # fmt: skip
    with pytest.raises(UserError, match="tp = 3 does not divide hidden = 8 and ffn = 32"):
        decoder_units(2, 8, 10, 4, tp=3)


def test_a_deep_model_is_cut_into_many_stages_as_evenly_as_it_can_be():
    cuts = balanced_cuts([3.0, *[1.0] * 510, 3.0], 129)
    sizes = [end - start for start, end in cuts]
    assert sum(sizes) == 512
    assert max(sizes[1:-1]) == 4, "the heaviest stage has four blocks"
    with pytest.raises(UserError, match="layers = 513: give those of a real model, at most 512"):
        transformer(513, 64, 100, 16, heads=4)
