"""Cut a model into pipeline stages of equal weight (lesson 08).

``split(model, num_stages)`` finds the model's units in order (embedding, blocks, head), cuts their list where
the heaviest stage becomes as light as possible, and gives a module for each stage.

- The parameters of a stage keep the names that they have in the model, so the stages' state dicts together
  are the model's.
- A matrix that two stages share (a tied embedding and head) gets a copy in each. ``PipelineParts.tied`` names
  the copies: the pipeline adds up their gradients, otherwise they would drift apart.
- The weight of a unit is its number of parameters, or what you measure (``unit_seconds``).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dtlab.cost.pipeline import balanced_cuts
from dtlab.errors import UserError
from dtlab.models.deepfm import DeepFM
from dtlab.models.gpt import GPT
from dtlab.ranks.agreement import broadcast

__all__ = ["PipelineParts", "Stage", "TiedParameter", "split", "unit_seconds", "units"]

TiedParameter = tuple[tuple[int, str], ...]
"""The copies of one parameter: (stage, name) of each."""


@dataclass(frozen=True)
class PipelineParts:
    """The stages of a model, first to last, and which of their parameters are one in the model.

    Each stage maps one tensor to one tensor. Write your own with ``PipelineParts((first, second))``.
    """

    stages: tuple[nn.Module, ...]
    tied: tuple[TiedParameter, ...] = ()

    @property
    def num_parameters(self) -> list[int]:
        """Parameters of each stage; a tied one counts in every stage that holds a copy."""
        return [sum(parameter.numel() for parameter in stage.parameters()) for stage in self.stages]


class Stage(nn.Module):
    """Some units of a model, one after the other, under the names that they have in it.

    >>> stage = Stage([("blocks.3", nn.Linear(2, 2)), ("head", nn.Linear(2, 1))])
    >>> [name for name, _ in stage.named_parameters()][:2]
    ['blocks.3.weight', 'blocks.3.bias']
    """

    def __init__(self, named_units: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__()
        for path, unit in named_units:
            *containers, last = path.split(".")
            parent: nn.Module = self
            for name in containers:
                if name not in dict(parent.named_children()):
                    parent.add_module(name, nn.Module())
                parent = parent.get_submodule(name)
            parent.add_module(last, unit)
        self.paths = tuple(path for path, _ in named_units)

    def forward(self, x: Tensor) -> Tensor:
        for path in self.paths:
            x = self.get_submodule(path)(x)
        return x


def units(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The parts of ``model`` that follow each other, with their names: what a cut may separate.

    Raises:
        UserError: a model that is no chain of units.

    >>> [name for name, _ in units(GPT(dim=8, num_layers=2, num_heads=2))]
    ['embedding', 'blocks.0', 'blocks.1', 'head']
    """
    if isinstance(model, GPT):
        blocks = [(f"blocks.{index}", block) for index, block in enumerate(model.blocks)]
        return [("embedding", model.embedding), *blocks, ("head", model.head)]
    if isinstance(model, nn.Sequential):
        return list(model.named_children())
    if isinstance(model, DeepFM):
        total = sum(parameter.numel() for parameter in model.parameters())
        share = model.embedding.weight.numel() / total
        raise UserError(
            f"DeepFM: one table holds {share:.0%} of the parameters and every field meets every other, so "
            "layers cannot be dealt out to stages; shard the table over the ranks instead"
        )
    raise UserError(
        f"{type(model).__name__} is no chain that could be cut by itself: give an nn.Sequential, or your own "
        "stages as PipelineParts((first, second, ...))"
    )


def split(model: nn.Module, num_stages: int, *, weights: Sequence[float] | None = None) -> PipelineParts:
    """Stages of about equal weight, sharing the model's modules (and, but for tied ones, its parameters).

    Args:
        model: a GPT or an ``nn.Sequential``; it may be on the meta device.
        num_stages: stages in all, ranks x stages per rank.
        weights: of each unit; default: its parameters. All ranks must give the same.

    Raises:
        UserError: fewer units than stages, or not one weight for each unit.

    >>> parts = split(GPT(16, 8, dim=8, num_layers=4, num_heads=2), 2)
    >>> [stage.paths for stage in parts.stages]
    [('embedding', 'blocks.0', 'blocks.1'), ('blocks.2', 'blocks.3', 'head')]
    >>> parts.tied
    (((0, 'embedding.token.weight'), (1, 'head.output.weight')),)
    """
    named = units(model)
    if weights is None:
        weights = [sum(parameter.numel() for parameter in unit.parameters()) for _, unit in named]
    if len(weights) != len(named):
        raise UserError(f"weights: {len(weights)} for {len(named)} units ({', '.join(n for n, _ in named)})")
    cuts = balanced_cuts(weights, num_stages)
    stages = [Stage(named[start:end]) for start, end in cuts]
    return PipelineParts(tuple(stages), _untie(stages))


def unit_seconds(model: nn.Module, inputs: Tensor, repeats: int = 3) -> list[float]:
    """Seconds of forward and backward of each unit, the least of ``repeats``: weights for ``split``.

    Measured by every rank, but all get rank 0's numbers, so that all cut at the same place.
    """
    seconds = []
    x = inputs
    for _, unit in units(model):
        best = float("inf")
        for _ in range(max(1, repeats)):
            start = time.perf_counter()
            out = unit(x.requires_grad_() if x.is_floating_point() else x)
            if out.requires_grad:
                out.sum().backward()
            best = min(best, time.perf_counter() - start)
        seconds.append(best)
        x = out.detach()
        unit.zero_grad()
    return broadcast(seconds)


def _untie(stages: Sequence[nn.Module]) -> tuple[TiedParameter, ...]:
    """Give every stage its own copy of a parameter that an earlier stage holds too."""
    first: dict[nn.Parameter, tuple[int, str]] = {}
    tied: dict[tuple[int, str], list[tuple[int, str]]] = {}
    for index, stage in enumerate(stages):
        for name, parameter in list(stage.named_parameters()):
            home = first.setdefault(parameter, (index, name))
            if home[0] != index:
                tied.setdefault(home, [home]).append((index, name))
                replace_parameter(stage, name, _copy(parameter))
    return tuple(tuple(copies) for copies in tied.values())


def replace_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Put ``parameter`` where ``module`` has ``name``."""
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, parameter)


def _copy(parameter: nn.Parameter) -> nn.Parameter:
    with torch.no_grad():
        copy = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
    copy.__dict__.update(parameter.__dict__)  # what says that it is one rank's part of a larger one
    return copy
