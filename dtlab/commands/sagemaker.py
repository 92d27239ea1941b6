"""``dtlab sagemaker``: what a training job will be, and what it will cost, before it is sent."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import App

from dtlab.errors import UserError

if TYPE_CHECKING:
    from dtlab.sagemaker.plan import Plan
    from dtlab.sagemaker.rehearsal import Rehearsed

app = App(name="sagemaker", help="A training job on SageMaker: plan and rehearse it.")


@app.command
def plan(job_file: Path, /, *, json: bool = False) -> None:
    """Show the request, what was changed and why, the price, quotas and rights. Nothing is sent.

    Parameters
    ----------
    job_file
        TOML file such as examples/jobs/s0.toml.
    json
        Print one JSON object: the request, alarms and policies with it.
    """
    from dtlab.sagemaker.job_file import read_job
    from dtlab.sagemaker.plan import make_plan

    found = make_plan(read_job(job_file))
    print(json_module.dumps(found.to_dict(), indent=2) if json else plan_text(found))


@app.command
def rehearse(
    job_file: Path,
    /,
    *,
    driver: Literal["dtlab", "sdk"] = "dtlab",
    folder: Path | None = None,
    timeout: float = 300.0,
    json: bool = False,
) -> int:
    """Run the job on this machine as its containers would: whole, stopped like a spot host, and gone on with.

    Exit code 0: it left a model, and after the stop it ended with the weights of the whole run, bit for bit.

    Parameters
    ----------
    job_file
        TOML file such as examples/jobs/s0.toml; its table [rehearsal] makes the job small.
    driver
        Who starts the ranks: dtlab's first process, or the torchrun driver of the SageMaker SDK.
    folder
        Keep the hosts' folders and output here; by default they go when the rehearsal ends.
    timeout
        Seconds that each of the three attempts may take.
    json
        Print one JSON object instead of lines; progress goes to stderr.
    """
    if not 0 < timeout < float("inf"):
        raise UserError(f"timeout = {timeout}: give seconds above 0, for example 300")
    from dtlab.sagemaker.job_file import read_job
    from dtlab.sagemaker.rehearsal import rehearse as run

    found = run(
        read_job(job_file),
        driver=driver,
        folder=folder,
        timeout=timeout,
        tell=lambda line: print(line, file=sys.stderr if json else None, flush=True),
    )
    print(json_module.dumps(found.to_dict(), indent=2) if json else rehearsal_text(found))
    return 0 if found.passed else 1


def rehearsal_text(found: Rehearsed) -> str:
    """The outcome as aligned lines."""
    saved = f"{found.seconds_to_end:g} s from SIGTERM to the end"
    if not found.saved_on_sigterm:
        saved = "no checkpoint after the stop; the one before it counts"
    rows = [
        (
            "ranks",
            f"{found.world_size} = {found.hosts} hosts x {found.ranks_per_host}, driver {found.driver}",
        ),
        ("model", ", ".join(found.model_files) or "none in /opt/ml/model"),
        ("stopped", saved),
        ("resumed", "equal to the whole run, bit for bit" if found.resumed_bit_equal else "OTHER WEIGHTS"),
        ("seconds", f"{found.seconds:g}"),
        ("verdict", "the job may be sent" if found.passed else "not ready to be sent"),
    ]
    return "\n".join(f"{name:<8} {text}" for name, text in rows)


def plan_text(found: Plan) -> str:
    """The plan as aligned lines, with the request at the end."""
    from dtlab.sagemaker.account import quotas

    job, compute = found.job, found.job.compute
    kind = "spot" if compute.spot else "on-demand"
    hosts = f"{compute.instance_count} x {compute.instance_type}, {kind}"
    rows = [
        ("job", found.name),
        ("hosts", hosts),
        ("ranks", f"{job.world_size} = {compute.instance_count} hosts x {job.ranks_per_host}, {_how(found)}"),
        *(("changed", line) for line in found.changes),
        *(("note", line) for line in found.notes),
        *(("price", line) for line in found.price_lines()),
        *(("quota", f"{quota.name}: {quota.needed}") for quota in quotas(job)),
        ("files", ", ".join(found.files)),
    ]
    lines = [f"{name:<8} {text}" for name, text in rows]
    request = json_module.dumps(found.request, indent=2)
    return "\n".join([*lines, "", "CreateTrainingJob", request, "", "Not sent. Rights and alarms: --json"])


def _how(found: Plan) -> str:
    layout = found.job.layout
    pipeline = f", {layout.stages} stages ({layout.schedule}, {layout.micro_batches} micro-batches)"
    return layout.launcher + (pipeline if layout.stages > 1 else "")
