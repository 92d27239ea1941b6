"""``dtlab pipeline``: prepare, features, train, evaluate and package as one command."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from dtlab.errors import UserError, one_line

if TYPE_CHECKING:
    from dtlab.workflow.config import Pipeline
    from dtlab.workflow.engine import Finished, StepReport

app = App(name="pipeline", help="From raw rows to a packaged model: run what has changed, skip the rest.")
Step = Literal["prepare", "features", "train", "evaluate", "package"]


@app.command
def run(file: Path, /, *, again: Step | None = None, json: bool = False) -> int:
    """Prepare, features, train, evaluate, package; a step whose inputs have not changed is skipped.

    Killed and started again, it finds its finished steps, and the train step goes on from its checkpoint.
    Exit code 1: the model does not reach pipeline.least_auc or most_request_ms, and is not packaged.

    Parameters
    ----------
    file
        TOML file as for dtlab train, with a table [pipeline], such as examples/pipeline.toml.
    again
        Do this step anew even if nothing has changed.
    json
        Print one JSON object instead of lines; progress goes to stderr.
    """
    from dtlab.commands.training import exit_code
    from dtlab.workflow.engine import run as run_pipeline

    told = sys.stderr if json else sys.stdout
    found = run_pipeline(
        read_pipeline(file), again=again, echo=not json, tell=lambda line: print(line, file=told, flush=True)
    )
    print(json_module.dumps(found.to_dict(), indent=2) if json else finished_text(found))
    if found.stopped_by is not None:
        return exit_code({"stopped_by": found.stopped_by}) or 1
    return 0 if found.passed else 1


@app.command
def status(file: Path, /, *, json: bool = False) -> None:
    """Which steps run would do now, and why. Nothing is run or written.

    Parameters
    ----------
    file
        The pipeline's TOML file.
    json
        Print one JSON object instead of lines.
    """
    from dtlab.workflow.engine import look

    pipeline = read_pipeline(file)
    found = look(pipeline)
    if json:
        steps = [{"step": each.step, "action": each.action, "reason": each.reason} for each in found]
        print(json_module.dumps({"folder": str(pipeline.options.folder), "steps": steps}, indent=2))
        return
    print("\n".join(f"{each.step:<9} {each.action:<8} {each.reason}" for each in found))


def read_pipeline(file: Path) -> Pipeline:
    """The pipeline of a file.

    Raises:
        UserError: no such file, or what stands in it does not fit; the file is named.
    """
    from dtlab.commands.config_file import read_config_file
    from dtlab.workflow.config import Pipeline

    tables = read_config_file(str(file), besides=("pipeline",))
    try:
        return Pipeline.from_dict(tables)
    except UserError as error:
        raise UserError(one_line(f"config file = {str(file)!r}: {error}", most=600)) from None


def finished_text(found: Finished) -> str:
    """How it ended, as aligned lines."""
    from dtlab.diagnose.record_checks import way_on

    body = found.to_dict()
    rows: list[tuple[str, str]] = []
    if body["auc"] is not None:
        best = found.facts("evaluate").get("auc_best_reachable")
        rows.append(("test AUC", f"{body['auc']:.4f}" + (f" (best reachable {best:.4f})" if best else "")))
    for name, each in (body["latency"] or {}).items():  # request, batch, and the model alone
        rows.append((name, _latency(each, found.facts("evaluate")["serving_threads"])))
    done = [step for step in found.steps if step.action != "skip"]
    skipped = len(found.steps) - len(done)
    rows.append(("steps", f"{skipped} skipped, " + (", ".join(map(_took, done)) or "none run")))
    if found.stopped_by is not None:
        rows.append(("stopped by", f"{found.stopped_by}; go on with {way_on(found.stopped_by)}"))
    rows += [("refused", line) for line in found.missed]
    if found.archive is not None:
        rows.append(("archive", f"{found.archive}, {found.archive.stat().st_size / 1e6:.2f} MB"))
    rows.append(("summary", str(found.folder / "summary.json")))
    return "\n".join(f"{name:<10} {value}" for name, value in rows)


def _took(report: StepReport) -> str:
    return f"{report.step} {report.seconds:.1f} s"


def _latency(found: dict[str, Any], threads: int) -> str:
    rows = "1 row" if found["rows"] == 1 else f"{found['rows']:,} rows"
    return (
        f"{rows}: p50 {found['p50_ms']:.2f} ms, p95 {found['p95_ms']:.2f} ms, "
        f"{found['rows_per_second']:,.0f} rows/s ({found['requests']:,} requests, one process, "
        f"{threads} {'thread' if threads == 1 else 'threads'})"
    )
