"""A rank's stages of a pipeline as one module: what a loop, an evaluation and a checkpoint hold (lesson 09).

``PipelinedModel(pipe)`` has the parameters of this rank's stages under the names that they have in the model,
and ``train()``, ``eval()`` and ``parameters()`` as any module. It is run by ``pipe.step`` and
``pipe.evaluate``, which all ranks of the pipeline call; there is no forward of one rank alone.
"""

from typing import NoReturn

import torch
from torch import Tensor

from dtlab.errors import UserError
from dtlab.parallel.pipeline import Pipeline
from dtlab.parallel.split import Stage

__all__ = ["PipelinedModel", "padded"]


class PipelinedModel(Stage):
    """The units of this rank's stages, and the pipeline that they belong to.

    Attributes:
        pipe: made by ``pipeline`` from stages of ``split``.

    Raises:
        UserError: stages that are not from ``split``, whose names could be those of other stages too.
    """

    def __init__(self, pipe: Pipeline) -> None:
        units = []
        for number, stage in pipe.stages.items():
            if not isinstance(stage, Stage):
                raise UserError(f"stage {number} is a {type(stage).__name__}: cut the model with split()")
            units += [(path, stage.get_submodule(path)) for path in stage.paths]
        super().__init__(units)
        self.pipe = pipe

    def forward(self, x: Tensor) -> NoReturn:
        raise UserError("PipelinedModel: a rank has some stages only; call pipe.step or pipe.evaluate on all")


def padded(inputs: Tensor, targets: Tensor, num_micro_batches: int, ignored: int) -> tuple[Tensor, Tensor]:
    """The batch with rows that count nothing, so that it is cut into equal micro-batches of at least one row.

    Args:
        inputs, targets: [B, ...]; B may be 0, as in the tail of an epoch.
        ignored: the target that enters no loss.

    >>> inputs, targets = padded(torch.ones(3, 2), torch.ones(3, 2), 2, ignored=-100)
    >>> len(inputs), targets[3].tolist()
    (4, [-100.0, -100.0])
    """
    missing = -len(inputs) % num_micro_batches if len(inputs) else num_micro_batches
    if not missing:
        return inputs, targets
    rows = (
        inputs.new_zeros(missing, *inputs.shape[1:]),
        targets.new_full((missing, *targets.shape[1:]), ignored),
    )
    return torch.cat([inputs, rows[0]]), torch.cat([targets, rows[1]])
