"""Bytes that training needs on one card, item by item: states, activations, the rest (lesson 01).

- *States* are parameters, gradients, moments and an fp32 master copy: bytes per parameter, known exactly.
- *Activations* come from the closed forms in `activations.py`, checked against published measurements.
- A bill is in bytes. GB is 1e9 and GiB is 2**30; `units.describe_bytes` prints both.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from dtlab.cost.activations import Recompute, activation_bytes, logit_bytes
from dtlab.cost.presets import Preset, preset
from dtlab.cost.units import GIB, describe_bytes
from dtlab.errors import UserError

Precision = Literal["fp32", "amp", "bf16-mixed", "bf16"]
Optimizer = Literal["sgd", "momentum", "adam"]
Verdict = Literal["fits", "risky", "does not fit"]

# Weights, gradients, one moment, master copy: bytes of each per parameter.
_BYTES: dict[str, tuple[int, int, int, int]] = {
    "fp32": (4, 4, 4, 0),
    "amp": (
        4,
        4,
        4,
        0,
    ),  # autocast: the states stay fp32, only activations and cast copies are half precision
    "bf16-mixed": (2, 2, 4, 4),  # bf16 weights and gradients beside fp32 master weights and moments
    "bf16": (2, 2, 2, 0),
}
_MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}
# Of 454 measured runs, none predicted below 80 % of the card ran out of memory (arXiv 2411.06465); above 92 %
# allocators start to retry.
FITS_BELOW, RISKY_BELOW = 0.80, 0.92


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter that live from step to step."""

    parameters: int
    gradients: int
    moments: int
    master: int

    @property
    def optimizer(self) -> int:
        """What optimizer sharding (ZeRO-1) divides: moments and master copy."""
        return self.moments + self.master

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer


def state_bytes(
    precision: Precision = "fp32", optimizer: Optimizer = "adam", *, fp32_gradients: bool = False
) -> StateBytes:
    """Bytes per parameter by item.

    Args:
        precision: "fp32"; "amp" = torch autocast over fp32 weights; "bf16-mixed" = bf16 weights with an fp32
            master copy; "bf16" = everything bf16.
        optimizer: "sgd", "momentum" (SGD with momentum) or "adam" (also AdamW).
        fp32_gradients: gradients of "bf16-mixed" are accumulated in fp32: 18 bytes with Adam instead of 16.

    >>> state_bytes("bf16-mixed", "adam")
    StateBytes(parameters=2, gradients=2, moments=8, master=4)
    """
    optimizer_name = {"adamw": "adam", "sgd-momentum": "momentum"}.get(optimizer, optimizer)
    if precision not in _BYTES:
        raise UserError(f"precision={precision!r} is unknown: use {', '.join(map(repr, _BYTES))}")
    if optimizer_name not in _MOMENTS:
        raise UserError(f"optimizer={optimizer!r} is unknown: use {', '.join(map(repr, _MOMENTS))}")
    if fp32_gradients and precision == "bf16":
        raise UserError("fp32_gradients=True goes with precision='bf16-mixed', not with pure 'bf16'")
    weights, gradients, moment, master = _BYTES[precision]
    return StateBytes(weights, 4 if fp32_gradients else gradients, moment * _MOMENTS[optimizer_name], master)


def state_bytes_per_parameter(
    precision: Precision = "fp32", optimizer: Optimizer = "adam", *, fp32_gradients: bool = False
) -> int:
    """All states together, in bytes per parameter.

    >>> [state_bytes_per_parameter(precision, "adam") for precision in ("fp32", "amp", "bf16-mixed", "bf16")]
    [16, 16, 16, 8]
    """
    return state_bytes(precision, optimizer, fp32_gradients=fp32_gradients).total


def weights_bytes(model: int | str | Preset, precision: Precision = "fp32") -> int:
    """The weights alone, in bytes; `model` is a number of parameters or a preset.

    >>> weights_bytes(1_000_000_000)
    4000000000
    """
    return _count(model) * state_bytes(precision, "sgd").parameters


def state_bytes_per_rank(
    model: int | str | Preset,
    ranks: int = 1,
    *,
    zero: Literal[0, 1, 2, 3] = 0,
    precision: Precision = "bf16-mixed",
    optimizer: Optimizer = "adam",
    fp32_gradients: bool = False,
) -> float:
    """States on each of `ranks` data-parallel ranks.

    `zero`: 0 = all replicated (DDP); 1 = moments and master copy sharded; 2 = gradients too; 3 = weights too
    (FSDP; the blocks gathered for computing come on top). Rajbhandari et al., arXiv 1910.02054, section 5.

    >>> [state_bytes_per_rank(7_000_000_000, 8, zero=z) / 1e9 for z in (0, 1, 2, 3)]
    [112.0, 38.5, 26.25, 14.0]
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UserError(f"ranks={ranks!r} is not a number of ranks: give a whole number of 1 or more")
    if zero not in (0, 1, 2, 3):
        raise UserError(f"zero={zero!r} is not a sharding stage: use 0, 1, 2 or 3")
    each = state_bytes(precision, optimizer, fp32_gradients=fp32_gradients)
    parts = ((each.optimizer, 1), (each.gradients, 2), (each.parameters, 3))
    return _count(model) * sum(size / ranks if zero >= stage else size for size, stage in parts)


@dataclass(frozen=True)
class MemoryBill:
    """The bytes of one rank by item, in stacking order. `unknown` says what is left out and why."""

    items: dict[str, int]
    unknown: tuple[str, ...] = field(default=())

    @property
    def total(self) -> int:
        return sum(self.items.values())

    @property
    def largest(self) -> str:
        """The item that a remedy should start with."""
        return max(self.items, key=lambda name: self.items[name])

    def verdict(self, card_bytes: int) -> Verdict:
        """Against a card: below 80 % "fits", below 92 % "risky". With an unknown item never "fits"."""
        share = self.total / card_bytes
        if share < FITS_BELOW and not self.unknown:
            return "fits"
        return "risky" if share < RISKY_BELOW else "does not fit"

    def lines(self) -> list[str]:
        """One line an item, then the total and what is unknown."""
        rows = [f"{name:<12} {describe_bytes(size)}" for name, size in self.items.items()]
        rows.append(f"{'total':<12} {describe_bytes(self.total)}")
        return rows + [f"not included: {reason}" for reason in self.unknown]


def training_bytes(
    model: str | Preset,
    micro_batch: int,
    *,
    precision: Precision = "fp32",
    optimizer: Optimizer = "adam",
    seq_len: int | None = None,
    recompute: Recompute = "none",
    ddp_buckets: bool = False,
    context_gib: float = 0.0,
) -> MemoryBill:
    """What one rank needs for training a preset.

    Args:
        micro_batch: samples (images, sequences, rows) in one forward pass of this rank.
        seq_len: tokens a sequence; the preset's own by default.
        recompute: "full" keeps the input of each layer and recomputes the rest (activation checkpointing).
        ddp_buckets: add DDP's copy of the gradients (absent with `gradient_as_bucket_view=True`).
        context_gib: CUDA context, to compare with nvidia-smi: about 1.3 on a V100, 1 on an A100 or H100.

    >>> bill = training_bytes("BERT-large", 4)
    >>> bill.largest, [round(size / 1e9, 2) for size in bill.items.values()]
    ('activations', [1.34, 1.34, 2.68, 9.06])
    """
    found = model if isinstance(model, Preset) else preset(model)
    each = state_bytes(precision, optimizer)
    items = {
        "parameters": found.parameters * each.parameters,
        "gradients": found.parameters * each.gradients,
        "optimizer": found.parameters * each.optimizer,
    }
    unknown: list[str] = []
    if precision == "amp":
        # Looking up an embedding is not cast by autocast: a table keeps its fp32 rows and gets no copy.
        items["cast copies"] = (found.parameters - found.table_parameters) * 2
    element: Literal[2, 4] = 4 if precision == "fp32" else 2
    if found.family == "unstated":
        unknown.append(f"activations: {found.note}")
    else:
        items["activations"] = activation_bytes(
            found, micro_batch, element_bytes=element, seq_len=seq_len, recompute=recompute
        )
    logits = logit_bytes(found, micro_batch, seq_len=seq_len)
    if logits:
        items["logits"] = logits
    if ddp_buckets:
        items["buckets"] = found.parameters * each.gradients
    if context_gib:
        items["context"] = round(context_gib * GIB)
    return MemoryBill(items, tuple(unknown))


def _count(model: int | str | Preset) -> int:
    if isinstance(model, str):
        model = preset(model)
    count = model.parameters if isinstance(model, Preset) else model
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count < math.inf:
        raise UserError(f"model={model!r} is not a number of parameters: give 0 or more, or a preset's name")
    return int(count)
