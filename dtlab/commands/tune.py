"""``dtlab tune``: search settings of a run over trials on ranks, within a number or a budget."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dtlab.errors import UserError

if TYPE_CHECKING:
    from dtlab.tune.search import Found


def tune(
    settings: Path,
    /,
    *,
    nproc: int = 2,
    trials: int | None = None,
    budget_usd: float | None = None,
    search: Literal["bayes", "random", "grid"] = "bayes",
    pruner: Literal["hyperband", "none"] = "hyperband",
    judge_every: int = 10,
    rungs: int = 27,
    folder: Path = Path("runs/tune"),
    seed: int = 0,
    timeout: float | None = None,
    json: bool = False,
) -> int:
    """Search the settings of [tune.space]; each trial is a run on nproc ranks, with its own record.

    Started again on the same folder, a search that was killed goes on.

    Parameters
    ----------
    settings
        TOML file as for dtlab train, with a table [tune.space].
    nproc
        Ranks of a trial.
    trials
        How many trials.
    budget_usd
        Dollars that all trials together may take on run.instance.
    search
        bayes (TPE), random, or grid: every combination of lists of choices.
    pruner
        hyperband ends trials early that fall behind; none runs each to its own stop.
    judge_every
        Optimizer steps (of the file's global batch) between two validations at which a trial may be pruned.
    rungs
        Reports after which a trial counts as trained in full: the largest resource of Hyperband.
    folder
        Folder of the search: the journal and a folder for each trial.
    seed
        Seed of the search.
    timeout
        Seconds that one trial may take.
    json
        Print one JSON object instead of lines; progress goes to stderr.
    """
    for name, value in (("nproc", nproc), ("judge_every", judge_every), ("rungs", rungs), ("trials", trials)):
        if value is not None and value < 1:
            raise UserError(f"{name} = {value}: must be at least 1")
    if budget_usd is not None and not 0 < budget_usd < float("inf"):
        raise UserError(f"budget_usd = {budget_usd}: give dollars above 0")
    from dtlab.commands.config_file import read_config_file
    from dtlab.train.config import TrainConfig
    from dtlab.tune.search import search as run_search
    from dtlab.tune.space import read_space
    from dtlab.tune.study import StudyPlan

    tables = read_config_file(str(settings), besides=("tune",))
    wanted = tables.pop("tune", None)
    if not isinstance(wanted, dict) or set(wanted) != {"space"}:
        raise UserError(
            f"config file = {str(settings)!r}: needs a table [tune.space], and only that in [tune]"
        )
    config = TrainConfig.from_dict(
        {
            table: {key.replace("-", "_"): value for key, value in keys.items()}
            for table, keys in tables.items()
        }
    )
    plan = StudyPlan(
        folder=folder,
        space=read_space(wanted["space"], config),
        search=search,
        pruner=pruner,
        maximize=config.data.name != "text",
        rungs=rungs,
        seed=seed,
    )
    found = run_search(
        config,
        plan,
        nproc=nproc,
        judge_every=judge_every,
        trials=trials,
        budget_usd=budget_usd,
        timeout=timeout,
        tell=lambda line: print(line, file=sys.stderr if json else None, flush=True),
    )
    print(json_module.dumps(_plain(found), indent=2) if json else found_text(found))
    return 0 if found.best is not None else 1


def found_text(found: Found) -> str:
    """The best values as flags of dtlab train, and the bill of all trials."""
    states = [each.state for each in found.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed"))
    lines = [("trials", f"{len(states)}: {counts}; ended by {found.ended_by}")]
    if found.best is not None:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in found.best.values.items())
        lines += [
            ("best", f"trial {found.best.number}, validation {found.best.metric:.4f}"),
            ("flags", flags),
        ]
    lines += [("samples", f"{found.samples:,} trained by all trials"), ("would cost", found.bill.line())]
    return "\n".join(f"{name:<14} {value}" for name, value in lines)


def _plain(found: Found) -> dict[str, Any]:
    return {
        "trials": [asdict(each) for each in found.trials],
        "best": None if found.best is None else asdict(found.best),
        "samples": found.samples,
        "usd": found.bill.usd,
        "bill": found.bill.line(),
        "ended_by": found.ended_by,
    }
