"""``dtlab ladder``: climb towards more hosts, and stop at the first rung that fails."""

from __future__ import annotations

import json as json_module
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dtlab.errors import UserError
from dtlab.train.config import TrainConfig

DEFAULT_RUN = TrainConfig()


def ladder(
    config_file: Path | None = None,
    /,
    *,
    config: Annotated[TrainConfig, Parameter(name="*")] = DEFAULT_RUN,
    nproc: int = 2,
    figures: Path | None = None,
    start: int = 256,
    most: int | None = None,
    memory_gb: float | None = None,
    steps: int = 40,
    timeout: float = 600.0,
    json: bool = False,
) -> int:
    """Is this job ready for more hosts? Six rungs on real ranks; it stops at the first one that fails.

    Exit code 0: ready. 1: a rung failed or has no figure, with the reason and the fix. 2: bad input.

    Parameters
    ----------
    config_file
        TOML file as for dtlab train; it comes right after the word ladder.
    config
        Any field of its tables, for example --optim.global-batch 8192; a flag wins over the file.
    nproc
        Ranks on this machine, 2 or more.
    figures
        Judge a job's own figures from this TOML or JSON file, and start nothing.
    start
        Rows per rank from which the batch is doubled.
    most
        Rows per rank beyond which no batch is tried; by default those that the data has.
    memory_gb
        Memory of one rank in GB (1e9 bytes); by default its card's, or its part of what is free on the host.
    steps
        Optimizer steps that are timed.
    timeout
        Seconds that each rung's run may take.
    json
        Print one JSON object instead of lines; progress goes to stderr.
    """
    if figures is not None:
        if config_file is not None or config != DEFAULT_RUN:
            raise UserError(
                f"figures = {str(figures)!r}: judges that file alone; leave the configuration out"
            )
        from dtlab.diagnose.figures_file import read_figures
        from dtlab.diagnose.ladder import judge

        judged = judge(read_figures(figures))
        if json:
            print(json_module.dumps(judged.to_dict(), indent=2))
        else:
            print("\n".join([*([judged.source] if judged.source else []), str(judged)]))
        return 0 if judged.ready else 1
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(f"WORLD_SIZE = {os.environ['WORLD_SIZE']!r}: dtlab ladder starts the ranks itself")
    if memory_gb is not None and not 0 < memory_gb < 1e9:
        raise UserError(f"memory_gb = {memory_gb}: give GB above 0, for example 16")
    if config.parallel != DEFAULT_RUN.parallel:
        raise UserError(
            "parallel: the ladder measures data parallelism alone; leave the table [parallel] out"
        )
    from dtlab.diagnose.climb import Plan, climb
    from dtlab.diagnose.ladder import line

    plan = Plan(
        config=config,
        nproc=nproc,
        start=start,
        most=most,
        memory_bytes=None if memory_gb is None else int(memory_gb * 1e9),
        steps=steps,
        timeout=timeout,
    )
    found = climb(plan, on_rung=lambda one: print(line(one), file=sys.stderr if json else None, flush=True))
    tried = found.batches
    if json:
        body = {**found.ladder.to_dict(), "batches": None if tried is None else tried.to_dict()}
        print(json_module.dumps(body, indent=2))
        return 0 if found.ladder.ready else 1
    if tried is not None:
        print(f"\n{tried}\n")
    print(found.ladder.verdict())
    return 0 if found.ladder.ready else 1
