"""Try a training step and leave no trace: weights, optimizer and generators as before (lesson 06)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dtlab.train.generators import Generators

__all__ = ["untouched"]


@contextmanager
def untouched(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Whatever the block does, model, optimizer and generators come out bit for bit as they went in.

    Parameters, buffers and the optimizer's tensors keep their identity; gradients and the modes of the
    modules come back too. Meanwhile a copy of all that lies in the host's memory, so a card's is not touched.

    >>> weight = nn.Linear(1, 1, bias=False)
    >>> optimizer = torch.optim.AdamW(weight.parameters(), lr=1.0)
    >>> before = weight.weight.item()
    >>> with untouched(weight, optimizer):
    ...     weight(torch.ones(1, 1)).sum().backward()
    ...     optimizer.step()
    >>> weight.weight.item() == before, weight.weight.grad, len(optimizer.state)
    (True, None, 0)
    """
    tensors = [*model.parameters(), *model.buffers()]
    held = [tensor for state in optimizer.state.values() for tensor in state.values()]
    tensors += [tensor for tensor in held if isinstance(tensor, Tensor)]
    kept = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in tensors]
    states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    groups = [
        {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    generators = Generators()
    draws = generators.state_dict()
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        yield
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)
        optimizer.state.clear()
        optimizer.state.update(states)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            for name in [name for name in group if name != "params" and name not in values]:
                del group[name]
            group.update(values)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, is_training in modes:
            module.training = is_training
        generators.load_state_dict(draws)
