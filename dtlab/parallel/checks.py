"""What to find out about a model before its gradients are shared between ranks (lesson 03).

- :func:`unused_parameters`: which parameters a loss does not reach. DDP waits for every gradient.
- :func:`sparse_parameters`: which parameters get sparse gradients. NCCL cannot reduce those.
- :func:`mutable_buffers`: which buffers a forward may change, so that the ranks' copies drift apart.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dtlab.errors import UserError

__all__ = [
    "check_sparse_gradients",
    "explain_unused",
    "mutable_buffers",
    "sparse_parameters",
    "unused_message",
    "unused_parameters",
]


def unused_parameters(model: nn.Module, loss: Tensor) -> list[str]:
    """Names of the trainable parameters of ``model`` that ``loss`` does not depend on; [] when it uses all.

    It asks autograd and leaves ``grad`` and the graph as they are, so ``loss.backward()`` can follow.

    >>> model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)})
    >>> unused_parameters(model, model["a"](torch.ones(1, 2)).sum())
    ['b.weight', 'b.bias']
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not loss.requires_grad:
        return [name for name, _ in named]
    gradients = torch.autograd.grad(
        loss,
        [parameter for _, parameter in named],
        torch.ones_like(loss),
        retain_graph=True,
        allow_unused=True,
    )
    return [name for (name, _), gradient in zip(named, gradients, strict=True) if gradient is None]


def explain_unused(names: list[str], *, find_unused: bool) -> str:
    """One line on what :func:`unused_parameters` found and on what to set ``find_unused`` to.

    >>> explain_unused([], find_unused=True)
    'every parameter gets a gradient: find_unused may be off, the search costs time in every step'
    """
    if names:
        flag = "find_unused=True is needed" if not find_unused else "find_unused=True takes care of it"
        return f"no gradient reaches {', '.join(names)}: {flag}"
    advice = (
        "find_unused may be off, the search costs time in every step" if find_unused else "find_unused is off"
    )
    return f"every parameter gets a gradient: {advice}"


def unused_message(names: Iterable[str]) -> str:
    """The error for a backward that left parameters without a gradient."""
    return (
        f"no gradient reached {', '.join(names)} in this backward, so gradients were not averaged; "
        f"use these parameters in every step, freeze them (requires_grad=False), or pass find_unused=True"
    )


def sparse_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters whose gradients are sparse (``nn.Embedding(..., sparse=True)`` and its kind).

    >>> sparse_parameters(nn.ModuleDict({"embedding": nn.Embedding(5, 2, sparse=True)}))
    ['embedding.weight']
    """
    return [
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and module.sparse
        and module.weight.requires_grad
    ]


def check_sparse_gradients(model: nn.Module, backend: str) -> None:
    """``UserError`` when ``backend`` cannot reduce the sparse gradients of ``model``; it names them.

    >>> check_sparse_gradients(nn.Embedding(5, 2, sparse=True), "gloo")
    """
    names = sparse_parameters(model)
    if names and "nccl" in backend:
        raise UserError(
            f"{', '.join(names)}: sparse gradients cannot be reduced by the backend {backend!r}; build the "
            f"table with sparse=False (its whole gradient then crosses in every step), or train it on the "
            f"CPU with the backend 'gloo'"
        )


def mutable_buffers(model: nn.Module) -> list[str]:
    """Names of the buffers that a forward may change: floating point and part of the state dict.

    Integer buffers (counters, offsets) and those outside the state dict (caches, tables of positions) follow
    from the configuration or from the number of steps, which are the same on every rank.

    >>> mutable_buffers(nn.BatchNorm1d(3))
    ['running_mean', 'running_var']
    """
    kept = model.state_dict(keep_vars=True)
    return [name for name, buffer in model.named_buffers() if name in kept and buffer.is_floating_point()]
