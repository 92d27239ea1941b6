"""A small model and its rows, for the checks of lesson 03."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def new_model(seed: int, *, plain: bool = False) -> nn.Module:
    """Three layers in float64; unless `plain`, the middle one is frozen and there is a buffer."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, 1)]
        model = nn.Sequential(*layers).double()
        if not plain:
            model[2].requires_grad_(False)
            model.register_buffer("scale", torch.randn(1, dtype=torch.float64))
    return model


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def rows_of_step(step: int, count: int) -> tuple[Tensor, Tensor]:
    import torch

    generator = torch.Generator().manual_seed(step)
    x = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return x, x[:, :1] * x[:, 1:2] + x[:, 2:3]


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return mean_loss(model(x), y)


def mean_loss(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().mean()


def flat(model: nn.Module) -> Tensor:
    import torch

    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def flat_gradient(model: nn.Module) -> Tensor:
    """All gradients in one vector; zeros where there is none."""
    import torch

    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.detach().flatten() for part in parts])
