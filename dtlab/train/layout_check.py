"""Does a configuration fit a number of ranks? Everything is refused here, before data are read (lesson 09).

The errors name the field, its value and a way out. Nothing is built and no message is sent, so the command
asks before it starts ranks, and each rank asks again for launchers that the command does not see.
"""

from __future__ import annotations

from math import gcd

from dtlab.errors import UserError
from dtlab.parallel.dims import AXES, ParallelDims
from dtlab.parallel.schedules import build_schedule
from dtlab.train.config import TrainConfig

__all__ = ["check_layout", "describe_layout", "is_plain", "micro_batches"]

VOCABULARY = 256  # a token is a byte
MOST_MICRO_BATCHES = 10_000
"""A schedule is a list of actions; the bubble of a step of fewer is long gone."""


def check_layout(config: TrainConfig, world_size: int) -> ParallelDims:
    """The degrees of ``config`` for ``world_size`` ranks.

    Raises:
        UserError: degrees that do not give the number of ranks, a model that they cannot cut, options that
            do not go together.

    >>> from dtlab.train.config_parallel import ParallelConfig
    >>> from dtlab.data.config import DataConfig
    >>> text = DataConfig(name="text")
    >>> check_layout(TrainConfig(data=text, parallel=ParallelConfig(dp_shard=2)), 4).dp_replicate
    2
    """
    parallel = config.parallel
    try:
        dims = ParallelDims(**parallel.degrees).of(world_size)
    except UserError as error:
        raise UserError(f"parallel: {error}") from None
    _check_data(config, dims)
    _check_options(config, dims)
    if config.data.name == "text":
        _check_model(config, dims)
    if dims.pp > 1:
        _check_pipeline(config, dims)
    return dims


def is_plain(dims: ParallelDims) -> bool:
    """Whether every rank holds the whole model: data parallelism alone."""
    return dims.dp_replicate == dims.size


def micro_batches(config: TrainConfig, dims: ParallelDims) -> int:
    """Micro-batches of a pipeline's step: as given, or a multiple of pp that keeps optim.micro_batch.

    >>> micro_batches(TrainConfig(), ParallelDims(pp=2))
    4
    """
    if config.parallel.micro_batches is not None:
        return config.parallel.micro_batches
    share, most = -(-config.optim.global_batch // dims.dp), config.optim.micro_batch
    wanted = min(2 * dims.pp, share) if most is None else -(-share // most)
    return -(-max(1, wanted) // dims.pp) * dims.pp


def describe_layout(config: TrainConfig, dims: ParallelDims) -> str:
    """The layout in a few words, for a report.

    >>> from dtlab.train.config_parallel import ParallelConfig
    >>> describe_layout(TrainConfig(parallel=ParallelConfig(pp=2)), ParallelDims(pp=2, dp_replicate=2))
    'pp 2 x dp_replicate 2, 1f1b with 4 micro-batches'
    """
    parallel = config.parallel
    degrees = zip(AXES, dims.shape, strict=True)
    words = [" x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1) or "one rank"]
    if dims.tp > 1 and parallel.engine == "by_hand":
        words.append("by hand")
    if dims.tp > 1 and parallel.sequence_parallel:
        words.append("sequence parallel")
    if dims.pp > 1:
        words.append(f"{parallel.schedule} with {micro_batches(config, dims)} micro-batches")
    if parallel.zero1:
        words.append("ZeRO-1")
    return ", ".join(words)


def _check_data(config: TrainConfig, dims: ParallelDims) -> None:
    """The GPT has a plan for tensor parallelism and is a chain of layers; of a DeepFM nothing is so.

    torch's FSDP does not cut single numbers, such as its bias.
    """
    for name, degree in (("dp_shard", dims.dp_shard), ("tp", dims.tp), ("pp", dims.pp)):
        if degree > 1 and config.data.name != "text":
            raise UserError(
                f"parallel.{name} = {degree}: data.name = {config.data.name!r} trains a DeepFM, which each "
                f"rank holds whole; take {name} = 1, or data.name = 'text'"
            )


def _check_options(config: TrainConfig, dims: ParallelDims) -> None:
    parallel = config.parallel
    _refuse_useless(config)
    if parallel.sequence_parallel and dims.tp == 1:
        raise UserError("parallel.sequence_parallel = True: needs tp above 1; leave it out, or give tp")
    if parallel.sequence_parallel and parallel.engine == "by_hand":
        raise UserError(
            "parallel.sequence_parallel = True: engine = 'by_hand' has it not; take engine = 'dtensor'"
        )
    if parallel.sequence_parallel and dims.pp > 1:
        raise UserError(
            f"parallel.sequence_parallel = True: stages hand on all positions and pp = {dims.pp}; take pp = 1"
        )
    if parallel.engine == "by_hand" and dims.tp > 1 and dims.dp_shard > 1:
        raise UserError(
            f"parallel.engine = 'by_hand': its parts cannot be cut once more by dp_shard = {dims.dp_shard}; "
            "take engine = 'dtensor', or dp_shard = 1"
        )
    if parallel.zero1 and not is_plain(dims):
        raise UserError(
            "parallel.zero1 = True: deals out the state of whole models, here a rank holds a part of one; "
            "leave it out (dp_shard cuts the state too), or take dp_shard = tp = pp = 1"
        )
    if is_plain(dims):
        return
    if config.run.engine == "by_hand":
        raise UserError(
            "run.engine = 'by_hand': averages whole models, here a rank holds a part of one; leave it out"
        )
    if config.precision.name == "fp16":
        raise UserError(
            "precision.name = 'fp16': ranks with parts of a model do not share one loss scale; take 'bf16' "
            "or 'fp32'"
        )
    if config.precision.compile:
        raise UserError(
            "precision.compile = True: is for whole models, here a rank holds a part of one; leave it out"
        )


def _refuse_useless(config: TrainConfig) -> None:
    """What only tp or pp reads, where there is none; -1, the rest, may be one rank and stay as it is."""
    parallel = config.parallel
    useless = {
        "engine": ("tp", parallel.engine != "dtensor"),
        "schedule": ("pp", parallel.schedule != "1f1b"),
        "micro_batches": ("pp", parallel.micro_batches is not None),
    }
    for name, (axis, is_given) in useless.items():
        if is_given and getattr(parallel, axis) == 1:
            value = getattr(parallel, name)
            instead = "; without a pipeline optim.micro_batch says it" if name == "micro_batches" else ""
            raise UserError(
                f"parallel.{name} = {value!r}: needs {axis} above 1; leave it out, or give {axis}{instead}"
            )


def _check_model(config: TrainConfig, dims: ParallelDims) -> None:
    shape, parallel = config.model, config.parallel
    width = 128 if shape.dim is None else shape.dim
    if width % shape.num_heads:
        raise UserError(
            f"model.num_heads = {shape.num_heads}: does not divide model.dim = {width}; choose a divisor"
        )
    cut_by_tp = {"num_heads": shape.num_heads, "hidden": 4 * width, "vocab_size": VOCABULARY}
    for name, size in cut_by_tp.items():
        if size % dims.tp:
            shared = gcd(*cut_by_tp.values())
            fitting = ", ".join(str(degree) for degree in range(1, shared + 1) if shared % degree == 0)
            raise UserError(
                f"parallel: tp = {dims.tp} does not divide {name} = {size}; degrees that do: {fitting}"
            )
    try:
        dims.check_model(
            num_layers=shape.num_layers,
            stages_per_rank=2 if parallel.schedule == "interleaved" and dims.pp > 1 else 1,
        )
    except UserError as error:
        raise UserError(f"parallel: {error}") from None
    if parallel.sequence_parallel and shape.sequence % dims.tp:
        raise UserError(
            f"parallel.sequence_parallel = True: tp = {dims.tp} does not divide model.sequence = "
            f"{shape.sequence}; change one of them"
        )


def _check_pipeline(config: TrainConfig, dims: ParallelDims) -> None:
    parallel, number, batch = config.parallel, micro_batches(config, dims), config.optim.global_batch
    if number > MOST_MICRO_BATCHES:
        name, value, fix = "parallel.micro_batches", number, "fewer"
        if parallel.micro_batches is None:
            name, value, fix = "optim.micro_batch", config.optim.micro_batch or batch, "a larger one"
        raise UserError(
            f"{name} = {value}: makes {number:,} micro-batches of a step, a pipeline takes at most "
            f"{MOST_MICRO_BATCHES:,}; give {fix}"
        )
    if parallel.schedule == "zero_bubble" and dims.dp_shard > 1:
        raise UserError(
            f"parallel.schedule = 'zero_bubble': takes the gradients of weights after those of inputs, and "
            f"dp_shard = {dims.dp_shard} (FSDP) would reduce them before they are there; take '1f1b' or "
            "'interleaved', or dp_replicate instead of dp_shard"
        )
    try:
        build_schedule(parallel.schedule, dims.pp, number)
    except UserError as error:
        raise UserError(f"parallel.micro_batches = {number}: {error}") from None
    parts = dims.dp * number
    if batch % parts:
        pipelines = f"{dims.dp} pipelines x " if dims.dp > 1 else ""
        low = batch // parts * parts
        either = f"{low} or {low + parts}" if low else f"{parts}"
        raise UserError(
            f"optim.global_batch = {batch}: {pipelines}{number} micro-batches do not divide it; take "
            f"{either}, or another parallel.micro_batches"
        )
