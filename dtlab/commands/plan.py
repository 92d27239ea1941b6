"""``dtlab plan``: which machines, how many, and how to cut the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dtlab.errors import UserError

if TYPE_CHECKING:
    from dtlab.cost.presets import Preset

_SEVERAL = Parameter(consume_multiple=True, negative=(), show_default=False)
Names = Annotated[tuple[str, ...], _SEVERAL]
Numbers = Annotated[tuple[int, ...], _SEVERAL]
Recomputes = Annotated[tuple[Literal["none", "selective", "full"], ...], _SEVERAL]
Precisions = Annotated[tuple[Literal["fp32", "amp", "bf16-mixed", "bf16"], ...], _SEVERAL]
# As in dtlab.cost.storage_bill, which --help does not need.
Volumes = Literal["s3", "s3-ia", "gp3", "gp2", "io1", "io2", "st1", "sc1", "fsx-scratch", "fsx-125"]
Destinations = Literal["internet", "region", "zone", "same region"]


def plan(
    model: str | None = None,
    /,
    *,
    config: Path | None = None,
    samples: float | None = None,
    tokens: float | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    deadline_hours: float | None = None,
    budget: float | None = None,
    goal: Literal["cheapest", "fastest", "frontier"] | None = None,
    instances: Names = (),
    counts: Numbers = (),
    max_gpus: int = 512,
    tp: Numbers = (),
    pp: Numbers = (),
    zero: Numbers = (),
    micro_batch: Numbers = (),
    recompute: Recomputes = (),
    precision: Precisions = (),
    optimizer: Literal["sgd", "momentum", "adam"] = "adam",
    kind: Literal["sagemaker", "ec2", "spot"] = "sagemaker",
    region: str = "us-east-1",
    interruptions: float | None = None,
    spot_fraction: float | None = None,
    prices: Path | None = None,
    calibration: Path | None = None,
    start_minutes: float = 5.0,
    reader: float | None = None,
    data_gib: float = 0.0,
    storage: Volumes = "s3",
    iops: int | None = None,
    checkpoint_gib: float = 0.0,
    stored_hours: float | None = None,
    egress_gib: float = 0.0,
    egress_to: Destinations = "internet",
    idle_hours: float = 0.0,
    sparse_table: Annotated[bool, Parameter(negative=())] = False,
    table_rows: int | None = None,
    top: int = 10,
    figure: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Search machines, their number, and the ways to cut a model, for the cheapest or the fastest run.

    Parameters
    ----------
    model
        A preset ("Llama 7B"; a wrong name lists all), or a TOML file with a [transformer] or [recommender].
    config
        A run's configuration file, as for dtlab train, in place of a model.
    samples
        Samples of the whole run, all epochs together: sequences, images or rows.
    tokens
        The same in tokens, for a model with a sequence length.
    global_batch
        Samples of one optimizer step over all ranks.
    seq_len
        Tokens of a sequence; the model's own by default.
    deadline_hours
        The run must end within these hours.
    budget
        The run must not cost more than this, in dollars.
    goal
        What to choose among the rest; with a budget and no deadline the fastest, else the cheapest.
        frontier lists what no other beats in both.
    instances
        Only these machine types or families, for example g5 g6e p4d; by default all that have GPUs.
    counts
        Only these numbers of machines.
    max_gpus
        Most GPUs, up to 16384.
    tp
        Only these degrees of tensor parallelism; never beyond a machine.
    pp
        Only these numbers of pipeline stages.
    zero
        Only these: 0 DDP, 1 or 2 ZeRO, 3 FSDP.
    micro_batch
        Only these sizes.
    recompute
        Only these.
    precision
        Only these.
    optimizer
        adam stands for AdamW too.
    kind
        Which price: SageMaker training, EC2 on demand, or EC2 spot with --interruptions.
    region
        AWS region.
    interruptions
        With --kind spot: interruptions per hour of one host.
    spot_fraction
        With --kind spot: its price over on demand.
    prices
        A price file of your own, whose figures go before the package's.
    calibration
        What dtlab cost fit --output wrote of your own runs; goes before the package's figures for their card.
    start_minutes
        Billed before the first step: image, data, process group, compile.
    reader
        Samples per second that one machine can read; without it the reader is never the limit.
    data_gib
        GiB of data (2**30 bytes; AWS's lists say GB) that lie in --storage and belong to the bill.
    storage
        Where they lie: a bucket or file system, or an EBS volume on each machine.
    iops
        Provisioned, with --storage io1, io2 or gp3.
    checkpoint_gib
        GiB of checkpoints that are kept on S3.
    stored_hours
        How long data and checkpoints are kept; as long as the run takes by default. A month is 730.
    egress_gib
        GiB that leave AWS, or the region or zone.
    egress_to
        Where to.
    idle_hours
        Hours that the machines stay up while nobody computes.
    sparse_table
        Ranks exchange the touched rows of an embedding table, not all of it.
    table_rows
        With --config and your own Parquet: rows of all embedding tables together.
    top
        Lines of the table.
    figure
        Write price against time to this file (png, svg or pdf).
    json
        Print one JSON object instead of lines.
    """
    from dtlab.commands.plan_answer import answer, check_figure
    from dtlab.commands.plan_shape import shape_of, with_sequence
    from dtlab.cost.beside import Beside
    from dtlab.cost.plan_job import Job, Space, Spot
    from dtlab.cost.price_file import prices_from

    if top < 1:
        raise UserError(f"top = {top}: give 1 or more lines")
    check_figure(figure)
    if (model is None) == (config is None):
        raise UserError("model: give a preset or a file with a shape, or a run's --config, and not both")
    limits = {
        "deadline_hours": deadline_hours, "budget": budget, "samples": samples, "tokens": tokens,
        "reader": reader,
    }  # fmt: skip
    if not 0 <= start_minutes < math.inf:
        raise UserError(f"start_minutes = {start_minutes}: give 0 or more minutes")
    for level in zero:
        if level not in (0, 1, 2, 3):
            raise UserError(f"zero = {level}: use 0 (DDP), 1 or 2 (ZeRO), 3 (FSDP)")
    for name, value in limits.items():
        if value is not None and not value > 0:
            raise UserError(f"{name} = {value}: give a number above 0")
    own = None
    if calibration is not None:
        from dtlab.commands.calibration_file import read_calibration

        own = read_calibration(calibration)
    with prices_from(prices):
        chosen: dict[str, Any] = {}
        if config is not None:
            from dtlab.commands.plan_config import job_of_config

            run = job_of_config(config, table_rows)
            shape, chosen = run.model, run.space
            samples = run.samples if samples is None and tokens is None else samples
            global_batch = run.global_batch if global_batch is None else global_batch
            deadline_hours = _given(deadline_hours, run.max_seconds and run.max_seconds / 3600)
            budget = _given(budget, run.max_usd)
        else:
            assert model is not None
            if table_rows is not None:
                raise UserError(
                    f"table_rows = {table_rows}: goes with --config; a [recommender] has its rows"
                )
            shape = shape_of(model)
        if seq_len is not None:
            shape = with_sequence(shape, seq_len)
        job = Job(
            model=shape,
            samples=_samples(shape, samples, tokens),
            global_batch=_needed(global_batch, "global_batch", "--global-batch 256"),
            deadline_seconds=math.inf if deadline_hours is None else 3600 * deadline_hours,
            budget_usd=math.inf if budget is None else budget,
            goal=_goal(goal, budget is not None and deadline_hours is None),
            optimizer=optimizer,
            start_seconds=60 * start_minutes,
            reader_per_host=math.inf if reader is None else reader,
            sparse_table=sparse_table,
            beside=Beside(
                data_gib=data_gib,
                storage=storage,
                iops=iops,
                checkpoint_gib=checkpoint_gib,
                stored_hours=stored_hours,
                egress_gib=egress_gib,
                egress_to=egress_to,
                idle_hours=idle_hours,
            ),
        )
        given = {
            "tp": tp, "pp": pp, "zeros": zero, "micro_batches": micro_batch, "recomputes": recompute,
            "precisions": precision,
        }  # fmt: skip
        chosen |= {name: value for name, value in given.items() if value}
        if chosen.get("layout") and (tp or pp or zero or micro_batch):
            del chosen["layout"]  # the flags say another
        spot = None
        if interruptions is not None:
            spot = Spot(interruptions_per_hour=interruptions, fraction=spot_fraction)
        elif spot_fraction is not None:
            raise UserError(f"spot_fraction = {spot_fraction}: goes with --kind spot and --interruptions")
        space = Space(
            instances=instances,
            counts=counts,
            max_gpus=max_gpus,
            kind=kind,
            region=region,
            spot=spot,
            **chosen,
        )
        return answer(job, space, 0 if goal == "frontier" else top, figure, json, own)


def _samples(shape: Preset, samples: float | None, tokens: float | None) -> float:
    if samples is not None and tokens is not None:
        raise UserError(f"samples = {samples:g} and tokens = {tokens:g}: give one of them")
    if tokens is not None:
        if not shape.seq_len:
            raise UserError(f"tokens = {tokens:g}: {shape.name} has no sequence; give --samples")
        return tokens / shape.seq_len
    return _needed(samples, "samples", "--samples 1e6, all epochs together")


def _needed(value: Any, name: str, example: str) -> Any:
    if value is None:
        raise UserError(f"{name} is needed: give {example}")
    return value


def _goal(goal: str | None, only_budget: bool) -> Literal["cheapest", "fastest"]:
    if goal == "fastest" or (only_budget and goal != "cheapest"):
        return "fastest"
    return "cheapest"


def _given(value: float | None, other: float | None) -> float | None:
    return other if value is None else value
