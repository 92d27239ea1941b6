"""``dtlab sagemaker pipeline``: show a definition, play it here, or send it."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dtlab.commands.asked import agreed, require_price
from dtlab.errors import UserError

if TYPE_CHECKING:
    from dtlab.sagemaker.job import TrainingJob
    from dtlab.sagemaker.pipeline import PipelinePlan

__all__ = ["pipeline", "play", "put", "show"]


def pipeline(
    job_file: Path,
    /,
    *,
    rehearse: bool = False,
    folder: Path | None = None,
    rights: bool = False,
    send: bool = False,
    start: bool = False,
    parameter: tuple[str, ...] = (),
    yes: bool = False,
    json: bool = False,
) -> int:
    """Show the job as a SageMaker pipeline: prepare, features, train, evaluate, package, register.

    Nothing leaves this machine without --send or --start, which ask first. Exit code 1: not sent, or the
    rehearsal did not end with a registered model.

    Parameters
    ----------
    job_file
        TOML file such as examples/jobs/s4.toml, with its table [pipeline].
    rehearse
        Play the definition on this machine instead, step by step.
    folder
        With --rehearse: keep the containers' folders and the packaged model here.
    rights
        Print the policies instead: the least that the pipeline's role and its submitter must be allowed.
    send
        Upload the code, and create the pipeline or change the one of that name; that costs nothing.
    start
        Also start an execution, which costs.
    parameter
        With --start: NAME=VALUE of a parameter that is not the default, such as DataVersion=2; once for each.
    yes
        With --send or --start: do not ask.
    json
        Print the definition alone, or with --rehearse, --send or --start one object about it.
    """
    from dtlab.sagemaker.job_file import read_job

    _one_thing_at_a_time(
        {"--rehearse": rehearse, "--rights": rights, "--start" if start else "--send": send or start}
    )
    if parameter and not start:
        raise UserError(f"parameter = {parameter[0]!r}: only with --start, whose execution takes it")
    if folder is not None and not rehearse:
        raise UserError(f"folder = {str(folder)!r}: only with --rehearse, which leaves the containers there")
    job = read_job(job_file)
    if rehearse:
        return play(job, folder, json=json)
    if not (send or start):
        return show(job, rights=rights, json=json)
    return put(job, start=start, parameters=parameter, ask=None if yes else agreed, json=json)


def _one_thing_at_a_time(asked: dict[str, bool]) -> None:
    both = [flag for flag, is_asked in asked.items() if is_asked]
    if len(both) > 1:
        raise UserError(f"{' and '.join(both)}: each does something of its own; give one of them")


def show(job: TrainingJob, *, rights: bool, json: bool) -> int:
    """Print the definition, what it may cost, and what to know; or the policies."""
    from dtlab.sagemaker.account import pipeline_role_policy, pipeline_submitter_policy, trust_policy
    from dtlab.sagemaker.pipeline import make_pipeline_plan
    from dtlab.sagemaker.pipeline_steps import output_of

    plan = make_pipeline_plan(job)
    if rights:
        folder = output_of(plan.job)
        role = {"trust": trust_policy(), "policy": pipeline_role_policy(plan.job, folder)}
        body = {"role": role, "submitter": pipeline_submitter_policy(plan.job, folder)}
        print(json_module.dumps(body, indent=2))
        return 0
    print(json_module.dumps(plan.definition, indent=2))
    if not json:
        print(f"\n{_summary(plan)}\n\nDry run: nothing was sent. Send it with --send, start it with --start.")
    return 0


def play(job: TrainingJob, folder: Path | None, *, json: bool) -> int:
    """Play the definition here; 0 when it ended with a model to register."""
    from dtlab.sagemaker.pipeline_rehearsal import rehearse_pipeline

    told = sys.stderr if json else sys.stdout
    found = rehearse_pipeline(job, folder=folder, tell=lambda line: print(line, file=told, flush=True))
    if json:
        print(json_module.dumps({**asdict(found), "passed": found.passed}, indent=2, default=str))
        return 0 if found.passed else 1
    auc = "not a number" if found.auc is None else f"{found.auc:.4f}"
    rows = [
        ("test AUC", auc),
        ("steps", ", ".join(f"{name} {took:.1f} s" for name, took in found.steps.items())),
    ]
    if found.archive is not None:
        rows.append(("archive", str(found.archive)))
    verdict = "the pipeline may be sent" if found.passed else found.ended_by or "no model was registered"
    rows.append(("verdict", verdict))
    print("\n".join(f"{name:<9} {text}" for name, text in rows))
    return 0 if found.passed else 1


def put(
    job: TrainingJob,
    *,
    start: bool,
    parameters: tuple[str, ...],
    ask: Callable[[str, float | None], bool] | None,
    json: bool,
) -> int:
    """Create or change the pipeline, and start it where that was asked for; 1 when the answer was no."""
    from dtlab.sagemaker.pipeline import make_pipeline_plan
    from dtlab.sagemaker.pipeline_client import put_pipeline, require_parameters, start_pipeline

    values = dict(map(_named, parameters))
    plan, told = make_pipeline_plan(job), sys.stderr if json else sys.stdout
    require_parameters(plan, values)  # before anything is sent
    print(_summary(plan), file=told, flush=True)
    usd = plan.usd_at_most if start else 0.0
    arn = execution = None
    if ask is None:
        require_price(plan.job, usd)
    if ask is not None and not ask(plan.name, usd):
        print("Not sent.", file=told)
    else:
        arn, is_new = put_pipeline(plan)
        print(f"\n{'created' if is_new else 'changed'}: {arn}", file=told)
        if start:
            execution = start_pipeline(plan, values)
            print(f"started: {execution}", file=told)
    if json:
        print(json_module.dumps({"name": plan.name, "arn": arn, "execution": execution, "usd_at_most": usd}))
    return 0 if arn is not None else 1


def _named(word: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    if not sign or not name:
        raise UserError(f"parameter = {word!r}: write NAME=VALUE, for example DataVersion=2")
    return name, value


def _summary(plan: PipelinePlan) -> str:
    kinds = [f"{step['Name']} ({step['Type']})" for step in plan.definition["Steps"]]
    rows = [
        ("pipeline", plan.name),
        ("steps", " -> ".join(kinds)),
        ("code", plan.code),
        *(("note", line) for line in plan.notes),
        *(("price", line) for line in plan.price_lines()),
    ]
    return "\n".join(f"{name:<8} {text}" for name, text in rows)
