"""``dtlab sagemaker``: a training job planned, rehearsed here, sent after a question, watched and stopped."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import App

from dtlab.commands.asked import agreed, require_price
from dtlab.errors import UserError

if TYPE_CHECKING:
    from dtlab.sagemaker.plan import Plan
    from dtlab.sagemaker.rehearsal import Rehearsed

app = App(name="sagemaker", help="A training job on SageMaker: plan it, rehearse it here, send it, watch it.")
app.command(
    "dtlab.commands.sagemaker_tune:tune",
    name="tune",
    help="Show the request of a tuning job whose training jobs start torchrun, and its price.",
)
app.command(
    "dtlab.commands.sagemaker_pipeline:pipeline",
    name="pipeline",
    help="Show the job as a SageMaker pipeline: prepare, features, train, evaluate, package, register.",
)


@app.command
def plan(job_file: Path, /, *, rights: bool = False, json: bool = False) -> None:
    """Show the request, what was changed and why, the price, quotas and rights. Nothing is sent.

    Parameters
    ----------
    job_file
        TOML file such as examples/jobs/s0.toml.
    rights
        Print the policies instead: the least that the job's role and its submitter must be allowed.
    json
        Print one JSON object: the request, alarms and policies with it.
    """
    from dtlab.sagemaker.job_file import read_job
    from dtlab.sagemaker.plan import make_plan

    found = make_plan(read_job(job_file))
    body = found.to_dict()
    if rights:
        print(json_module.dumps({"role": body["role"], "submitter": body["submitter"]}, indent=2))
        return
    print(json_module.dumps(body, indent=2) if json else plan_text(found))


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


@app.command
def submit(
    job_file: Path,
    /,
    *,
    send: bool = False,
    yes: bool = False,
    alarms: bool = False,
    queue: str | None = None,
    json: bool = False,
) -> int:
    """Show what the job may cost; with --send ask, and send it. Without --send nothing leaves this machine.

    Parameters
    ----------
    job_file
        TOML file such as examples/jobs/s0.toml.
    send
        Upload the code and create the job, after a question.
    yes
        With --send: do not ask.
    alarms
        Also create an alarm for each host whose cards idle.
    queue
        Name or ARN of an AWS Batch queue for SageMaker jobs, where the job waits for its turn.
    json
        Print one JSON object instead of lines.
    """
    from dtlab.sagemaker.client import submit as send_job
    from dtlab.sagemaker.job_file import read_job
    from dtlab.sagemaker.plan import make_plan

    found = make_plan(read_job(job_file))
    told = sys.stderr if json else sys.stdout
    print(summary_text(found), file=told, flush=True)
    arn = None
    if send and yes:
        require_price(found.job, found.usd_at_most)
    if not send:
        print("\nDry run: nothing was sent. Send it with --send.", file=told)
    elif not yes and not agreed(found.name, found.usd_at_most):
        print("Not sent.", file=told)
    else:
        from dtlab.sagemaker.batch_queue import service_job

        queued = None if queue is None else service_job(found, queue)
        arn = send_job(found, alarms=alarms, queue=queued)
        print(
            f"\nsent: {arn}\nlook: dtlab sagemaker status {found.name} --region {found.job.region}", file=told
        )
    if json:
        body = {"name": found.name, "sent": arn is not None, "arn": arn, "usd_at_most": found.usd_at_most}
        print(json_module.dumps(body))
    return 0 if arn is not None or not send else 1


@app.command
def status(name: str, /, *, region: str = "us-east-1", tuning: bool = False, json: bool = False) -> int:
    """How a job stands: state, cost so far, the newest checkpoint on S3. Exit code 1 when it failed.

    Parameters
    ----------
    name
        Of the training job, as submit printed it.
    region
        AWS region.
    tuning
        The name is that of a tuning job: how many of its training jobs ended how, and the best one.
    json
        Print one JSON object instead of lines.
    """
    from dataclasses import asdict

    if tuning:
        from dtlab.sagemaker.tuning_client import tuning_status

        tuned = tuning_status(name, region=region)
        print(json_module.dumps(asdict(tuned)) if json else "\n".join(tuned.lines()))
        return 1 if tuned.state == "Failed" else 0
    from dtlab.sagemaker.client import status as ask

    found = ask(name, region=region)
    if json:
        print(json_module.dumps({**asdict(found), "uploads_are_late": found.uploads_are_late()}))
        return 1 if found.state == "Failed" else 0
    rows = [("job", name), ("state", f"{found.state}, {found.detail}"), ("hosts", found.hosts)]
    if found.failure:
        rows.append(("failure", found.failure))
    if found.billable_seconds is not None:
        price = "" if found.usd is None else f", ${found.usd:,.2f}"
        rows.append(("billed", f"{found.billable_seconds:,} s{price}"))
    if found.saving is not None:
        rows.append(("spot", f"{found.saving:.0%} saved"))
    if found.uploaded_step is not None:
        rows.append(("saved", f"step {found.uploaded_step:,}, on S3 for {found.upload_age_seconds:,.0f} s"))
    if found.uploads_are_late():
        rows.append(
            ("WARNING", "the newest checkpoint on S3 is older than an hour: look whether saves go on")
        )
    print("\n".join(f"{field:<8} {text}" for field, text in rows))
    return 1 if found.state == "Failed" else 0


@app.command
def stop(name: str, /, *, region: str = "us-east-1", tuning: bool = False) -> None:
    """Stop a job: its ranks get SIGTERM, save, and end within 120 seconds.

    Parameters
    ----------
    name
        Of the training job.
    region
        AWS region.
    tuning
        The name is that of a tuning job: its running training jobs are stopped, and no other is started.
    """
    if tuning:
        from dtlab.sagemaker.tuning_client import stop_tuning

        stop_tuning(name, region=region)
        print(f"{name} is being stopped; its finished training jobs stay")
        return
    from dtlab.sagemaker.client import stop as ask

    ask(name, region=region)
    print(f"{name} is being stopped; what it saved lies in its checkpoint folder")


@app.command
def logs(name: str, /, *, region: str = "us-east-1", lines: int = 100) -> None:
    """The last lines that each host wrote.

    Parameters
    ----------
    name
        Of the training job.
    region
        AWS region.
    lines
        Of each host.
    """
    if lines < 1:
        raise UserError(f"lines = {lines}: give 1 or more")
    from dtlab.sagemaker.client import logs as ask

    for host, line in ask(name, region=region, most=lines):
        print(f"{host}: {line}")


def rehearsal_text(found: Rehearsed) -> str:
    """The outcome as aligned lines."""
    saved = (
        f"{found.seconds_to_checkpoint} s from SIGTERM to a checkpoint, {found.seconds_to_end:g} s to the end"
    )
    if found.seconds_to_checkpoint is None:
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
    request = json_module.dumps(found.request, indent=2)
    end = "Not sent. What the role and its submitter must be allowed: --rights"
    return f"{summary_text(found)}\n\nCreateTrainingJob\n{request}\n\n{end}"


def summary_text(found: Plan) -> str:
    """What is changed, what to know and what it costs, as aligned lines."""
    from dtlab.sagemaker.account import quotas

    job, compute = found.job, found.job.compute
    kind = "spot" if compute.spot else "on-demand"
    count = compute.instance_count
    rows = [
        ("job", found.name),
        ("hosts", f"{count} x {compute.instance_type}, {kind}"),
        ("ranks", f"{job.world_size} = {count} hosts x {job.ranks_per_host}, {_how(found)}"),
        *(("changed", line) for line in found.changes),
        *(("note", line) for line in found.notes),
        *(("price", line) for line in found.price_lines()),
        *(("quota", f"{quota.name}: {quota.needed}") for quota in quotas(job)),
        ("files", ", ".join(found.files)),
    ]
    return "\n".join(f"{name:<8} {text}" for name, text in rows)


def _how(found: Plan) -> str:
    layout = found.job.layout
    pipeline = f", {layout.stages} stages ({layout.schedule}, {layout.micro_batches} micro-batches)"
    return layout.launcher + (pipeline if layout.stages > 1 else "")
