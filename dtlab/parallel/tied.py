"""One parameter with copies on several pipeline stages: keep the copies one (lesson 08).

A tied embedding and head sit on the first and the last stage. Each copy gets the gradient of its own use
alone; without the sum the copies drift apart, and neither is the model's. Here both ranks send their gradient
to the other and add the two: the same sum to the last bit, so equal copies stay equal.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.parallel.actions import Schedule
from dtlab.parallel.sharded import laid_out_gradient, local_part
from dtlab.parallel.split import TiedParameter, replace_parameter

__all__ = ["TiedCopies"]

_TAG = 2**20  # above the tags of the stages' messages


class TiedCopies:
    """The tied parameters of a pipeline as one rank sees them.

    Copies on one rank become one parameter again. Copies on two ranks start from the first one's values.

    Raises:
        UserError: a name that a stage does not have, or more than two ranks that share a parameter.
    """

    def __init__(
        self,
        tied: tuple[TiedParameter, ...],
        stages: Mapping[int, nn.Module],
        schedule: Schedule,
        rank: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._group = group
        self.names: list[tuple[int, str]] = []
        """(stage, name) of this rank's copies that are the second or later of their parameter: a norm or a
        count over all ranks leaves them out."""
        self._shared: list[tuple[nn.Parameter, int]] = []  # the copy here, the rank of the other one
        for copies in tied:
            here = [(stage, name) for stage, name in copies if stage in stages]
            ranks = list(dict.fromkeys(schedule.rank_of(stage) for stage, _ in copies))
            if len(ranks) > 2:
                raise UserError(f"{copies[0][1]} is shared by stages on {len(ranks)} ranks; 2 at most")
            if not here:
                continue
            parameter = _parameter(stages, *here[0])
            for stage, name in here[1:]:
                _parameter(stages, stage, name)
                replace_parameter(stages[stage], name, parameter)
            if len(ranks) == 2:
                self._shared.append((parameter, ranks[1 - ranks.index(rank)]))
                if rank != ranks[0]:
                    self.names.append(here[0])
                self._start_equal(local_part(parameter.data), is_first=rank == ranks[0])

    def set_aside(self) -> list[Tensor | None]:
        """Before a step: take away gradients of earlier steps, summed over the copies already."""
        before = [parameter.grad for parameter, _ in self._shared]
        for parameter, _ in self._shared:
            parameter.grad = None
        return before

    def sum_gradients(self, before: list[Tensor | None]) -> None:
        """After a step: every copy gets the sum of the copies' gradients, added to those from ``before``."""
        for number, (parameter, peer) in enumerate(self._shared):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = local_part(laid_out_gradient(parameter))
            mine, other = gradient.contiguous(), torch.empty_like(gradient)
            there, back = (
                dist.P2POp(way, tensor, group=self._group, tag=_TAG + number, group_peer=peer)
                for way, tensor in ((dist.isend, mine), (dist.irecv, other))
            )
            for work in dist.batch_isend_irecv([there, back]):  # both at once: neither waits for the other
                work.wait()
            gradient.add_(other)
            earlier = before[number]
            if earlier is not None:
                gradient.add_(local_part(earlier))

    def _start_equal(self, values: Tensor, *, is_first: bool) -> None:
        number, (_, peer) = len(self._shared) - 1, self._shared[-1]
        if is_first:
            dist.send(values.contiguous(), group=self._group, group_dst=peer, tag=_TAG + number)
        else:
            dist.recv(values, group=self._group, group_src=peer, tag=_TAG + number)


def _parameter(stages: Mapping[int, nn.Module], stage: int, name: str) -> nn.Parameter:
    found = dict(stages[stage].named_parameters(remove_duplicate=False)).get(name)
    if found is None:
        raise UserError(f"tied: stage {stage} has no parameter {name!r}")
    return found
