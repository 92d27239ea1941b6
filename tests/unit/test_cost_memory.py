"""State bytes are exact, parameter counts equal the published ones, activations stay near measurements."""

import pytest
import torch
from torch import nn

from dtlab.cost import presets
from dtlab.cost.activations import activation_bytes, resnet_activation_bytes
from dtlab.cost.catalogue import instance
from dtlab.cost.memory import (
    MemoryBill,
    state_bytes,
    state_bytes_per_parameter,
    state_bytes_per_rank,
    training_bytes,
    weights_bytes,
)
from dtlab.cost.parameters import deepfm_parameters, gpt_parameters, with_embedding
from dtlab.cost.presets import PRESETS, preset
from dtlab.errors import UserError

MIB = 2**20


@pytest.mark.parametrize(
    ("precision", "optimizer", "total"),
    [
        ("fp32", "sgd", 8), ("fp32", "momentum", 12), ("fp32", "adam", 16),
        ("amp", "sgd", 8), ("amp", "momentum", 12), ("amp", "adamw", 16),
        ("bf16-mixed", "sgd", 8), ("bf16-mixed", "momentum", 12), ("bf16-mixed", "adam", 16),
        ("bf16", "sgd", 4), ("bf16", "momentum", 6), ("bf16", "adam", 8),
    ],
)  # fmt: skip
def test_bytes_per_parameter(precision: str, optimizer: str, total: int) -> None:
    assert state_bytes_per_parameter(precision, optimizer) == total  # type: ignore[arg-type]


def test_fp32_gradients_beside_bf16_weights_make_18_bytes() -> None:
    assert state_bytes_per_parameter("bf16-mixed", "adam", fp32_gradients=True) == 18
    with pytest.raises(UserError, match="fp32_gradients"):
        state_bytes("bf16", "adam", fp32_gradients=True)


def test_master_copy_and_sharding_of_the_optimizer_are_counted() -> None:
    each = state_bytes("bf16-mixed", "adam")
    assert (each.parameters, each.gradients, each.moments, each.master) == (2, 2, 8, 4)
    seven_billion = 7_000_000_000
    per_rank = [state_bytes_per_rank(seven_billion, 8, zero=zero) / 1e9 for zero in (0, 1, 2, 3)]  # type: ignore[arg-type]
    assert per_rank == [112.0, 38.5, 26.25, 14.0]
    assert state_bytes_per_rank(seven_billion, precision="fp32") == 112e9


def test_one_billion_parameters_are_4_gb_of_weights_and_16_gb_of_states() -> None:
    assert weights_bytes(1_000_000_000) == 4 * 10**9
    assert state_bytes_per_rank(1_000_000_000, precision="fp32") == 16e9


def test_a_v100_of_32_gb_holds_8e9_weights_and_2e9_with_adam() -> None:
    assert 32e9 / weights_bytes(1) == 8.0e9
    assert 32e9 / state_bytes_per_parameter("fp32", "adam") == 2.0e9


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ResNet-50", 25_557_032),
        ("BERT-large", 335_141_888),
        ("Llama 7B", 6_738_415_616),
        ("Llama 70B", 68_976_648_192),
        ("S3 multimodal 320M", 320_000_000),
    ],
)
def test_presets_have_the_published_parameter_counts(name: str, parameters: int) -> None:
    assert preset(name).parameters == parameters


def test_gpt_formula_gives_gpt_2_exactly_and_gpt_3_as_named() -> None:
    assert gpt_parameters(12, 768, 50257, 1024) == 124_439_808
    assert preset("GPT-3 175B").parameters == pytest.approx(175e9, rel=0.003)


def test_every_preset_states_its_formula_and_source() -> None:
    for name, found in PRESETS.items():
        assert found.name == name
        assert found.formula
        assert found.source
        assert found.family != "unstated" or found.note


def test_deepfm_formula_counts_the_model_itself() -> None:
    from dtlab.models.deepfm import DeepFM

    for cardinalities, num_dense, dim, hidden in (([3, 5, 11], 2, 4, (8, 6)), ([7], 0, 16, (128, 64))):
        model = DeepFM(cardinalities, num_dense, dim=dim, hidden=hidden)
        counted = sum(parameter.numel() for parameter in model.parameters())
        assert deepfm_parameters(sum(cardinalities), len(cardinalities), num_dense, dim, hidden) == counted


def test_tied_embedding_is_stored_once_and_the_look_up_multiplies_nothing() -> None:
    tied = with_embedding(1000, vocab=100, hidden=8, tied=True)
    untied = with_embedding(1000, vocab=100, hidden=8, tied=False)
    assert (tied.stored, untied.stored) == (1800, 2600)
    assert tied.multiplied == untied.multiplied == 1800
    assert tied.flops_per_token == untied.flops_per_token == 10_800


def test_unknown_preset_precision_and_optimizer_are_named() -> None:
    with pytest.raises(UserError, match=r"preset='BERT-larg'.*BERT-large"):
        preset("BERT-larg")
    with pytest.raises(UserError, match=r"precision='fp8'.*bf16-mixed"):
        state_bytes("fp8", "adam")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="optimizer='lion'"):
        state_bytes("fp32", "lion")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="ranks=0"):
        state_bytes_per_rank(10, 0)
    with pytest.raises(UserError, match="zero=4"):
        state_bytes_per_rank(10, 2, zero=4)  # type: ignore[arg-type]


# nvidia-smi on a V100 of 16 GB, context included; the model's tolerance is stated in the name.
@pytest.mark.parametrize(
    ("micro_batch", "precision", "recompute", "measured_mib"),
    [
        (4, "fp32", "none", 14949),
        (1, "fp32", "none", 8681),
        (1, "fp32", "full", 6775),
        (4, "amp", "none", 13939),
        (1, "amp", "full", 7275),
    ],
)
def test_bert_large_is_within_5_percent_of_what_was_measured(
    micro_batch: int, precision: str, recompute: str, measured_mib: int
) -> None:
    bill = training_bytes(
        "BERT-large", micro_batch, precision=precision, recompute=recompute, context_gib=1.3  # type: ignore[arg-type]
    )  # fmt: skip
    assert bill.total == pytest.approx(measured_mib * MIB, rel=0.05)


def test_llama_layer_has_30_h_plus_8_f_bytes_a_token() -> None:
    tokens = 2 * 1024
    expected = 32 * (30 * 4096 + 8 * 11008) * tokens
    assert activation_bytes(presets.LLAMA_7B, 2, element_bytes=2, seq_len=1024) == expected


def test_gpt_layer_has_34_h_bytes_a_token_and_full_recomputation_keeps_2() -> None:
    layer = 34 * 12288 * 2048
    assert activation_bytes(presets.GPT_3, 1, element_bytes=2) == 96 * layer
    kept = activation_bytes(presets.GPT_3, 1, element_bytes=2, recompute="full")
    assert kept == 96 * 2 * 12288 * 2048 + layer


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.project = nn.Identity()
        if project:
            self.project = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.path(x)
        out += self.project(x)
        return out.relu_()


def resnet_50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            width = 64 * 2**stage
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(channels, width, stride, project=block == 0))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def test_resnet_formula_against_what_autograd_keeps() -> None:
    with torch.device("meta"):
        model, image = resnet_50(), torch.empty(2, 3, 224, 224)
    assert sum(parameter.numel() for parameter in model.parameters()) == preset("ResNet-50").parameters
    states = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in states:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(image).sum()
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert 2 * resnet_activation_bytes() == pytest.approx(measured, rel=0.005)


def test_bill_adds_up_and_names_its_largest_item() -> None:
    bill = training_bytes("BERT-large", 4)
    assert list(bill.items) == ["parameters", "gradients", "optimizer", "activations"]
    assert bill.total == sum(bill.items.values())
    assert bill.largest == "activations"
    assert training_bytes("S4 DeepFM 1M x 1024", 256).largest == "optimizer"
    assert len(bill.lines()) == 5


def test_the_wide_table_fills_a_t4_and_half_precision_does_not_help() -> None:
    t4 = instance("g4dn.xlarge").gpu_memory_bytes
    plain = training_bytes("S4 DeepFM 1M x 1024", 256)
    amp = training_bytes("S4 DeepFM 1M x 1024", 256, precision="amp")
    assert plain.items["parameters"] + plain.items["gradients"] + plain.items["optimizer"] > 16.4e9
    assert plain.verdict(t4) == amp.verdict(t4) == "does not fit"
    for item in ("parameters", "gradients", "optimizer"):
        assert amp.items[item] == plain.items[item]


def test_the_320m_model_is_short_of_memory_for_activations_not_parameters() -> None:
    bill = training_bytes("S3 multimodal 320M", 128)
    assert bill.total == pytest.approx(5.1e9, rel=0.01)
    assert "activations" not in bill.items
    assert len(bill.unknown) == 1
    assert bill.verdict(instance("p4d.24xlarge").gpu_memory_bytes) != "fits", "one item is unknown"
    with pytest.raises(UserError, match="architecture"):
        activation_bytes(presets.MULTIMODAL_320M, 128)
    buckets = training_bytes("S3 multimodal 320M", 128, ddp_buckets=True)
    assert buckets.total - bill.total == 4 * 320_000_000


def test_verdict_keeps_headroom() -> None:
    bill = MemoryBill({"all": 80})
    assert bill.verdict(101) == "fits"
    assert [bill.verdict(card) for card in (100, 87)] == ["risky", "risky"]
    assert [bill.verdict(card) for card in (86, 80, 10)] == ["does not fit"] * 3


@pytest.mark.parametrize("micro_batch", [-1, 1.5, True])
def test_micro_batch_is_a_count(micro_batch: object) -> None:
    with pytest.raises(UserError, match="micro_batch"):
        training_bytes("BERT-large", micro_batch)  # type: ignore[arg-type]


def test_sequence_length_is_a_count_and_recompute_a_known_word() -> None:
    with pytest.raises(UserError, match="seq_len"):
        training_bytes("BERT-large", 1, seq_len=0)
    with pytest.raises(UserError, match="recompute"):
        training_bytes("BERT-large", 1, recompute="some")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="ResNet-50"):
        training_bytes("ResNet-50", 1, recompute="full")
    assert training_bytes("BERT-large", 0).items["activations"] == 0
