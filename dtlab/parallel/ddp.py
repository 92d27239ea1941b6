"""Data parallelism behind one call: torch's DDP, or the by-hand twin (lesson 03).

``data_parallel(model)`` returns a module whose gradients are, after each backward, the mean over the ranks.

- All gradients travel in one bucket on a CPU: the ranks share the cores, so an all-reduce that overlaps with
  backward takes its time from backward. On a GPU buckets of 25 MiB overlap (torch's default).
- Buffers are broadcast before a forward only when the model has some that a forward changes (BatchNorm).
- Gradients are views of the bucket, so the model is held once plus one gradient, not two.
- A model that leaves parameters without a gradient is refused before the optimizer steps, by name.
"""

import inspect
import os
import re
import warnings
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from dtlab.errors import DtlabWarning, UserError
from dtlab.parallel.by_hand_ddp import HandDDP, broadcast_state
from dtlab.parallel.checks import check_sparse_gradients, mutable_buffers, unused_message
from dtlab.parallel.same_model import check_same_model
from dtlab.parallel.sharded import is_sharded, sharded_names

if TYPE_CHECKING:
    from dtlab.ranks.worlds import World

__all__ = ["TorchDDP", "data_parallel", "no_sync", "unwrap"]


def data_parallel(
    model: nn.Module,
    world: "World | None" = None,
    *,
    engine: Literal["torch", "by_hand"] = "torch",
    bucket_mb: float | None = None,
    find_unused: bool = False,
    group: dist.ProcessGroup | None = None,
) -> nn.Module:
    """``model`` with gradients averaged over the ranks; parameters and buffers are rank 0's from here on.

    ``world``: moves the model to its device first. ``engine``: ``"torch"`` for DistributedDataParallel,
    ``"by_hand"`` for :class:`HandDDP`. ``bucket_mb``: most MB (1e6 bytes) in one all-reduce; None chooses for
    the device. ``find_unused``: allow parameters that a step does not use, at the price of a search in every
    step. ``group``: the ranks that share the gradients (default: all).

    The result has ``no_sync()``, for all micro-batches of a step but the last. A world of one gets its own
    model back, and so does a model without trainable parameters, with a :class:`DtlabWarning`.

    ``UserError`` for an unknown engine, a bucket of no size, sparse gradients on NCCL, and ranks whose models
    differ in the name, shape or dtype of a parameter or buffer, or in what is frozen; and for DTensors that
    the ranks of ``group`` should average.

    >>> model = data_parallel(nn.Linear(2, 1))  # a world of one
    >>> with model.no_sync():
    ...     model(torch.ones(1, 2)).sum().backward()
    """
    if engine not in ("torch", "by_hand"):
        raise UserError(f"engine: {engine!r} is unknown; take 'torch' or 'by_hand'")
    if bucket_mb is not None and bucket_mb <= 0:
        raise UserError(
            f"bucket_mb: {bucket_mb}; give the most MB in one all-reduce, or None to let it be chosen"
        )
    if world is not None:
        model = model.to(world.device)
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        _warn_if_apart()
        return _alone(model)
    check_sparse_gradients(model, dist.get_backend(group))
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "full_tensor") and not is_sharded(parameter, group):
            raise UserError(
                f"{name}: DDP averages no DTensors; take fully_sharded(model, mesh), which does also with "
                "dp_shard = 1, or tensor_parallel(..., engine='by_hand')"
            )
    trainable = [p for p in model.parameters() if p.requires_grad and not is_sharded(p, group)]
    if not trainable:
        check_same_model(model, group)  # as the engines do: a rank with trainable parameters waits in theirs
        warnings.warn(
            f"{type(model).__name__} has no trainable parameter, so there is nothing to average: not wrapped",
            DtlabWarning,
            stacklevel=2,
        )
        return _alone(model)
    device = trainable[0].device
    if bucket_mb is None and device.type != "cpu":
        bucket_mb = 25 * 2**20 / 1e6
    if engine == "by_hand":
        return HandDDP(model, group, bucket_mb=bucket_mb, find_unused=find_unused)
    return TorchDDP(model, group, bucket_mb=bucket_mb, find_unused=find_unused)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own model inside whatever :func:`data_parallel` returned: for evaluation and for saving.

    >>> model = nn.Linear(2, 1)
    >>> unwrap(data_parallel(model)) is model
    True
    """
    while isinstance(model, DistributedDataParallel | HandDDP):
        model = model.module
    return model


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """``model.no_sync()``, its like for ``fully_sharded``, or nothing for a model that was never wrapped.

    >>> with no_sync(nn.Linear(2, 1)):
    ...     pass
    """
    if hasattr(model, "set_requires_gradient_sync"):
        return _keep_gradients(model)
    return getattr(model, "no_sync", nullcontext)()


@contextmanager
def _keep_gradients(model: Any) -> Iterator[None]:
    """FSDP: gradients stay whole on their rank until a backward outside."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _warn_if_apart() -> None:
    """Ranks that joined no group would each train a model of their own, and all would look well."""
    size = os.environ.get("WORLD_SIZE", "")
    if not dist.is_initialized() and size.isdigit() and int(size) > 1:
        warnings.warn(
            f"WORLD_SIZE = {size}, but this process joined no group: it trains alone, on all of the data; "
            "put the code inside `with dtlab.world():`",
            DtlabWarning,
            stacklevel=3,
        )


def _alone(model: nn.Module) -> nn.Module:
    if not hasattr(model, "no_sync"):
        model.no_sync = nullcontext  # type: ignore[assignment]
    return model


# torch 2.13 renamed the option; 2.9 to 2.12 know the old name only.
_SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel.__init__).parameters
)


class TorchDDP(DistributedDataParallel):
    """``DistributedDataParallel`` that names the parameters without a gradient, before a wrong step is taken.

    When a backward does not reach a parameter, its bucket is never reduced. Plain DDP lets the optimizer step
    with gradients that differ between ranks and fails in the next forward, with numbers instead of names.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        bucket_mb: float | None = None,
        find_unused: bool = False,
    ) -> None:
        check_same_model(module, group)
        if bucket_mb is None:
            bucket_mb = 2 * sum(parameter.nbytes for parameter in module.parameters()) / 1e6 + 1
        has_changing_buffers = bool(mutable_buffers(module))
        if not has_changing_buffers:
            broadcast_state(module, group)  # DDP would leave the constant buffers out
        # The only way to tell DDP of parameters that are not its business, since torch 1.7; no public name.
        module._ddp_params_and_buffers_to_ignore = sharded_names(module, group)  # type: ignore[assignment]
        super().__init__(
            module,
            process_group=group,
            bucket_cap_mb=max(1, round(bucket_mb * 1e6 / 2**20)),
            find_unused_parameters=find_unused,
            gradient_as_bucket_view=True,
            **{_SYNC_BUFFERS: has_changing_buffers},  # type: ignore[arg-type]
        )
        self._is_watching = not find_unused
        self._waits_for_gradients = False
        self._before: dict[str, tuple[int, int]] = {}
        self._watched = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if self._is_watching:
            handle = register_optimizer_step_pre_hook(_watcher(weakref.ref(self)))
            weakref.finalize(self, handle.remove)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        try:
            output = super().forward(*inputs, **named_inputs)
        except RuntimeError as error:
            if "Expected to have finished reduction" not in str(error):
                raise
            raise UserError(unused_message(self._names_in(str(error)))) from error
        self._waits_for_gradients = torch.is_grad_enabled() and self.require_backward_grad_sync
        if self._is_watching and self._waits_for_gradients:
            # Micro-batches before this one, or zeros: a gradient that is there and stays as it is.
            shared = ((n, p) for n, p in self._watched.items() if n not in self.parameters_to_ignore)
            places = ((name, _place(parameter)) for name, parameter in shared)
            self._before = {name: place for name, place in places if place is not None}
        return output

    def check_gradients(self, optimizer: Optimizer) -> None:
        """``UserError`` when the last backward left parameters of this model without a gradient."""
        if not self._waits_for_gradients:
            return
        own = set(self._watched.values())
        if not any(parameter in own for group in optimizer.param_groups for parameter in group["params"]):
            return
        missing = [
            name
            for name, parameter in self._watched.items()
            if parameter.grad is None or (name in self._before and self._before[name] == _place(parameter))
        ]
        if len(missing) == len(self._watched):
            return  # no backward yet: not this check's business
        self._waits_for_gradients = False
        if missing:
            raise UserError(unused_message(missing))

    def _names_in(self, message: str) -> list[str]:
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", message)
        names = list(self._watched)
        return [names[int(index)] for index in found[1].split()] if found else ["some parameters"]


def _place(parameter: nn.Parameter) -> tuple[int, int] | None:
    """Address and version of a dense gradient: a synchronised backward that reaches it changes one."""
    gradient = parameter.grad
    if gradient is None or gradient.layout is not torch.strided:
        return None
    return gradient.data_ptr(), gradient._version


def _watcher(reference: "weakref.ref[TorchDDP]") -> Any:
    """A hook for every optimizer's step that holds no model alive."""

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        model = reference()
        if model is not None:
            model.check_gradients(optimizer)

    return before_step
