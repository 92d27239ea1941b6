"""Which number format to compute in, and an optimizer step in the right order (lesson 06).

- The weights and the optimizer stay in float32; autocast runs matrix products in bf16 or fp16.
- bf16 has the range of float32 and needs no loss scale. Cards compute in it from compute capability 8.0 on;
  older ones only emulate it. fp16 is fast from 7.0 on, but small gradients vanish, so the loss is scaled up
  and the gradients are scaled back: by ``torch.amp.GradScaler``.
- The step, once per optimizer step however many micro-batches came before: unscale, norm, clip, step, update
  the scale. Clipping gradients that are still scaled by 65536 would all but stop training.
- A step whose gradients are not finite, or that has no gradient at all, is skipped with a reason. The
  decision rests on gradients that are already reduced over the ranks, so all take the same one without a
  message.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dtlab.errors import DtlabWarning, UserError
from dtlab.train.gradients import (
    clip_by_norm,
    has_gradient,
    named_parameters_of,
    not_finite,
    total_norm,
)

NAMES = ("fp32", "bf16", "fp16")
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepOutcome:
    """What became of one optimizer step; equal on every rank."""

    applied: bool
    """False when the step was skipped; the schedule must not advance then."""
    norm: Tensor | None
    """Norm of the unscaled gradients before clipping, 0-dimensional; reading it waits for the device. None
    when nothing asked for it, or there was no gradient."""
    reason: str = ""
    """Why the step was skipped; empty when it was applied."""


class Precision:
    """A number format, its autocast, its scaler and the optimizer step that belongs to it.

    Made by :func:`pick_precision`.

    Args:
        name: "fp32", "bf16" or "fp16".
        device: "cpu", "cuda", ...: where autocast works.
        reason: why this format, in words.
        init_scale: first loss scale of fp16.
        check_finite: skip a step with a nan or an infinity in fp32 and bf16 too. Without it these two never
            wait for the device (fp16 always checks).

    >>> precision = pick_precision("cpu")
    >>> weight = torch.ones(2, requires_grad=True)
    >>> optimizer = torch.optim.SGD([weight], lr=1.0)
    >>> with precision.autocast():
    ...     loss = weight.sum()
    >>> precision.scale(loss).backward()
    >>> precision.optimizer_step(optimizer, clip=1.0).applied
    True
    """

    def __init__(
        self,
        name: str,
        device: torch.device | str = "cpu",
        reason: str = "",
        *,
        init_scale: float = 2.0**16,
        check_finite: bool = True,
    ) -> None:
        _known(name)
        self.name, self.reason = name, reason
        self.dtype = _DTYPES[name]
        self.device_type = torch.device(device).type
        self.skipped = 0
        """Steps skipped so far."""
        self.skipped_in_a_row = 0
        """Steps skipped since the last applied one."""
        self._check_finite = check_finite or name == "fp16"
        self._init_scale = init_scale
        self._is_scaled = False

    def __repr__(self) -> str:
        return f"Precision({self.name!r}, {self.device_type!r}: {self.reason})"

    @property
    def uses_scaler(self) -> bool:
        """Whether the loss is scaled: in fp16 only."""
        return self.name == "fp16"

    @cached_property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The ``torch.amp.GradScaler`` of fp16; None in fp32 and bf16, which need none."""
        if not self.uses_scaler:
            return None
        return torch.amp.GradScaler(self.device_type, init_scale=self._init_scale)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context for forward and loss (not for backward)."""
        return nullcontext() if self.name == "fp32" else torch.autocast(self.device_type, dtype=self.dtype)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call ``backward`` on: multiplied by the loss scale in fp16, itself otherwise."""
        if self.scaler is None:
            return loss
        self._is_scaled = True
        return self.scaler.scale(loss)

    def optimizer_step(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        parameters: Iterable[Tensor] | Iterable[tuple[str, Tensor]] | None = None,
        clip: float | None = None,
    ) -> StepOutcome:
        """Unscale once, clip, step and update the scale; or skip, with the reason.

        Call it after the last micro-batch of the step, when the gradients are reduced over the ranks.

        Args:
            optimizer: one, or several that step together or not at all.
            parameters: what the norm is taken over and what is clipped, at least all of the optimizer's;
                pairs of name and parameter let the reason name the bad ones. Default: the optimizer's.
            clip: largest norm of all gradients together; None does not clip.

        Raises:
            UserError: fp16 gradients of a loss that did not go through :meth:`scale`, a clip that is not
                positive, ``parameters`` that leave out some of the optimizer's.
        """
        if clip is not None and not clip > 0:
            raise UserError(f"clip = {clip!r}: must be a positive norm, for example 1.0, or None")
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        # An optimizer without gradients has nothing to step, and the scaler fails on it.
        optimizers = [each for each in optimizers if has_gradient(each)]
        if not optimizers:
            return self._skip(None, "no parameter of this optimizer has a gradient")
        named = named_parameters_of(optimizers, parameters)
        tensors = [parameter for _, parameter in named]
        if self.scaler is not None:
            self._unscale(optimizers)
        norm = total_norm(tensors) if clip is not None or self._check_finite else None
        is_small = False
        if norm is not None and self._check_finite:
            value = float(norm)  # waits for the device
            if not math.isfinite(value):
                return self._skip(norm, self._bad_gradient(value, named))
            is_small = clip is not None and value + 1e-6 <= clip  # the factor would be 1
        if clip is not None and norm is not None and not is_small:
            clip_by_norm(tensors, clip, norm)
        for each in optimizers:
            if self.scaler is None:
                each.step()
            else:
                self.scaler.step(each)
        if self.scaler is not None:
            self.scaler.update()
        self._is_scaled = False
        self.skipped_in_a_row = 0
        return StepOutcome(True, norm)

    def _unscale(self, optimizers: list[Optimizer]) -> None:
        assert self.scaler is not None
        if not self._is_scaled:
            raise UserError(
                "precision = 'fp16': the gradients come from a loss that was not scaled; call "
                "precision.scale(loss).backward()"
            )
        for each in optimizers:
            try:
                self.scaler.unscale_(each)
            except ValueError as error:
                raise UserError(f"precision = 'fp16': {error} Keep the model's weights in float32") from error

    def _skip(self, norm: Tensor | None, reason: str) -> StepOutcome:
        self._is_scaled = False
        self.skipped += 1
        self.skipped_in_a_row += 1
        return StepOutcome(False, norm, reason)

    def _bad_gradient(self, norm: float, named: list[tuple[str, Tensor]]) -> str:
        """The reason in words. Lowers the loss scale: an fp16 overflow is cured by that."""
        bad = [name for name in not_finite(named) if name]
        where = f" in {', '.join(bad[:3])}{', ...' if len(bad) > 3 else ''}" if bad else ""
        reason = f"the gradient is not finite (norm {norm}){where}"
        if self.scaler is not None:
            before = self.scaler.get_scale()
            self.scaler.update()
            reason += f"; loss scale {before:g} -> {self.scaler.get_scale():g}"
        return reason

    # -- state ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Format, scaler and count of skipped steps, as JSON values; equal on every rank."""
        scaler = None if self.scaler is None else dict(self.scaler.state_dict())
        return {
            "name": self.name,
            "scaler": scaler,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the saved scale. Another format than the saved one gives a DtlabWarning.

        Raises:
            UserError: the state is not that of a precision.
        """
        expected = {"name", "scaler", "skipped", "skipped_in_a_row"}
        if set(state) != expected:
            raise UserError(
                f"precision state has the keys {sorted(state)}; it needs exactly {sorted(expected)}"
            )
        self.skipped, self.skipped_in_a_row = int(state["skipped"]), int(state["skipped_in_a_row"])
        if state["name"] != self.name:
            scale = " and the loss scale starts anew" if self.uses_scaler else ""
            warnings.warn(
                f"precision = {self.name!r}: the saved run computed in {state['name']}; this one goes on in "
                f"{self.name}{scale}",
                DtlabWarning,
                stacklevel=2,
            )
        elif self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(dict(state["scaler"]))


def pick_precision(
    device: torch.device | str | tuple[int, int], wanted: str | None = None, *, check_finite: bool = True
) -> Precision:
    """The format for a device, or ``wanted`` if that is given, with the reason.

    Args:
        device: a device, or the compute capability of a CUDA card as (major, minor).
        wanted: "fp32", "bf16", "fp16"; None or "auto" chooses: bf16 from capability 8.0 on, fp16 from 7.0 on,
            fp32 otherwise and on a CPU. bf16 on a card below 8.0 gives a DtlabWarning.
        check_finite: see :class:`Precision`.

    Raises:
        UserError: an unknown format, or a CUDA device on a machine without one.

    >>> [pick_precision(capability).name for capability in ((7, 0), (7, 5), (8, 0), (9, 0))]
    ['fp16', 'fp16', 'bf16', 'bf16']
    >>> pick_precision("cpu").reason
    'on a CPU fp32 is exact and rarely slower'
    """
    kind, capability = _kind_of(device)
    if wanted is None or wanted == "auto":
        name, reason = _choose(kind, capability)
        return Precision(name, kind, reason, check_finite=check_finite)
    _known(wanted)
    reason = "asked for"
    if wanted == "bf16" and capability is not None and capability < (8, 0):
        reason = (
            f"asked for, but capability {_text(capability)} reaches bf16 by emulation only, which is slow; "
            "cards compute in it from 8.0 on"
        )
        warnings.warn(f"precision = 'bf16': {reason}; take 'fp16'", DtlabWarning, stacklevel=2)
    return Precision(wanted, kind, reason, check_finite=check_finite)


def _kind_of(device: Any) -> tuple[str, tuple[int, int] | None]:
    if isinstance(device, tuple):
        if len(device) == 2 and all(isinstance(part, int) for part in device):
            return "cuda", device
    else:
        try:
            return _capability(torch.device(device))
        except UserError:
            raise
        except (RuntimeError, TypeError):  # torch knows no such device
            pass
    raise UserError(
        f"device = {device!r}: give a device such as 'cpu' or 'cuda', or a capability such as (8, 0)"
    )


def _choose(kind: str, capability: tuple[int, int] | None) -> tuple[str, str]:
    if capability is None:
        return "fp32", f"on a {kind.upper()} fp32 is exact and rarely slower"
    if capability >= (8, 0):
        return "bf16", f"capability {_text(capability)} computes in bf16: the range of fp32, no loss scale"
    if capability >= (7, 0):
        return "fp16", f"capability {_text(capability)} has fp16 tensor cores but only emulates bf16"
    return "fp32", f"capability {_text(capability)} has no tensor cores, so half precision gains little"


def _capability(device: torch.device) -> tuple[str, tuple[int, int] | None]:
    if device.type != "cuda":
        return device.type, None
    if not torch.cuda.is_available():
        raise UserError(f"device = {str(device)!r}: this machine has no CUDA card; take 'cpu'")
    return "cuda", torch.cuda.get_device_capability(device)


def _text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _known(name: str) -> None:
    if name not in NAMES:
        raise UserError(f"precision = {name!r}: unknown; choose fp32, bf16 or fp16")
