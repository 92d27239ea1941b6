"""``dtlab sagemaker tune``: a tuning job as a checked request with its price, sent after a question."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Literal

from dtlab.commands.asked import agreed, require_price


def tune(
    job_file: Path,
    settings: Path,
    /,
    *,
    objective: str,
    strategy: Literal["Bayesian", "Hyperband", "Random"] = "Bayesian",
    minimize: bool = False,
    jobs: int = 12,
    parallel: int = 2,
    resource: tuple[int, int] = (1, 9),
    seed: int = 0,
    send: bool = False,
    yes: bool = False,
    json: bool = False,
) -> int:
    """Show the request of a tuning job whose training jobs start torchrun, and its price.

    Nothing leaves this machine without --send, which asks first.

    Parameters
    ----------
    job_file
        TOML file such as examples/jobs/s0.toml, without the settings that are searched.
    settings
        TOML file with the table [tune.space], as for dtlab tune.
    objective
        One of the job's metrics.
    strategy
        How SageMaker searches.
    minimize
        A smaller objective is better.
    jobs
        Training jobs in all.
    parallel
        Training jobs at a time.
    resource
        Hyperband: least and largest number of times that a job prints the objective.
    seed
        Seed of the search.
    send
        Upload the code and create the tuning job, after a question.
    yes
        With --send: do not ask.
    json
        Print the request alone, as JSON; with --send one object that says whether it was sent.
    """
    from dtlab.commands.config_file import read_config_file
    from dtlab.sagemaker.job_file import read_job
    from dtlab.sagemaker.tuning import make_tuning_plan
    from dtlab.train.config import TrainConfig
    from dtlab.tune.space import read_space

    wanted = read_config_file(str(settings), besides=("tune",)).get("tune", {})
    space = read_space(wanted.get("space") if isinstance(wanted, dict) else None, TrainConfig())
    found = make_tuning_plan(
        read_job(job_file),
        space,
        objective=objective,
        strategy=strategy,
        maximize=not minimize,
        jobs=jobs,
        parallel=parallel,
        resource=resource,
        seed=seed,
    )
    told = sys.stderr if json else sys.stdout
    if not (json and send):
        print(json_module.dumps(found.request, indent=2))
    price = "no price is known" if found.bill is None else f"at most {found.bill.line()}"
    if not json or send:
        print("\n".join(["", f"price: {price}", *(f"note: {line}" for line in found.notes)]), file=told)
    if not send:
        if not json:
            print("\nDry run: nothing was sent. Send it with --send.")
        return 0
    arn = None
    if yes:
        require_price(found.job, found.usd_at_most)
    if yes or agreed(found.name, found.usd_at_most):
        from dtlab.sagemaker.tuning_client import submit_tuning

        arn = submit_tuning(found)
        look = f"dtlab sagemaker status {found.name} --tuning --region {found.job.region}"
        print(f"\nsent: {arn}\nlook: {look}", file=told)
    else:
        print("Not sent.", file=told)
    if json:
        body = {"name": found.name, "sent": arn is not None, "arn": arn, "usd_at_most": found.usd_at_most}
        print(json_module.dumps(body))
    return 0 if arn is not None else 1
