"""``dtlab runs``: list the runs of a folder, compare two, find the one behind a checkpoint."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

if TYPE_CHECKING:
    from dtlab.track.runs import Difference, Run

app = App(name="runs", help="List runs, compare two, find the one behind a checkpoint, hand one to MLflow.")
FOLDER = Path("runs")


@app.default
def runs(folder: Path = FOLDER, /, *, checkpoint: Path | None = None, json: bool = False) -> None:
    """List the runs of a folder; with --checkpoint only the run that wrote it, with all its settings.

    Parameters
    ----------
    folder
        Folder of the runs (run.output).
    checkpoint
        A checkpoint, a model folder, or a file in one of them.
    json
        Print JSON instead of lines.
    """
    from dtlab.track.runs import find_by_checkpoint, list_runs

    if checkpoint is not None:
        run = find_by_checkpoint(checkpoint, folder)
        print(json_module.dumps(run.to_dict(), indent=2) if json else run_text(run))
        return
    found, unreadable = list_runs(folder)
    if json:
        print(json_module.dumps([run.to_dict() for run in found], indent=2))
        return
    print("\n".join([*_table(found), *(f"left out: {line}" for line in unreadable)]))


@app.command
def compare(first: Path, second: Path, /, *, json: bool = False) -> None:
    """Which settings of two runs differ, and which results.

    Parameters
    ----------
    first
        A run's folder, its name in runs/, or its record.jsonl.
    second
        The other's.
    json
        Print one JSON object instead of lines.
    """
    from dtlab.track.runs import compare as differences
    from dtlab.track.runs import read_run

    settings, results = differences(read_run(first), read_run(second))
    if json:
        parts = {"settings": settings, "results": results}
        body = {
            part: {each.name: [each.first, each.second] for each in found} for part, found in parts.items()
        }
        print(json_module.dumps(body, indent=2))
        return
    print(f"settings that differ: {len(settings)}")
    print("\n".join(_aligned(settings)) if settings else "  none: the same settings, data, code and versions")
    print(f"results that differ: {len(results)}")
    print("\n".join(_aligned(results)) if results else "  none")


@app.command
def mlflow(run: Path, /, *, store: str | None = None, experiment: str = "dtlab") -> None:
    """Write a run into MLflow.

    Parameters
    ----------
    run
        A run's folder or its record.jsonl.
    store
        A data base (default sqlite:///mlflow.db), a server's address, or the ARN of SageMaker's managed
        MLflow.
    experiment
        Name of the experiment there.
    """
    from dtlab.track.mlflow_store import LOCAL_STORE, log_run
    from dtlab.track.runs import read_run

    store = LOCAL_STORE if store is None else store
    print(f"{run} -> {store}, experiment {experiment}, run {log_run(read_run(run), store, experiment)}")


def run_text(run: Run) -> str:
    """A run as aligned lines: how it ended, its results, its settings."""
    lines = [("run", str(run.folder)), ("status", run.status)]
    lines += [(name, _shown(value)) for name, value in (run.results | run.settings).items()]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _table(found: list[Run]) -> list[str]:
    if not found:
        return ["no runs here; dtlab train makes one"]
    rows = [("run", "status", "data", "ranks", "lr", "batch", "metric", "samples", "usd", "commit")]
    for run in found:
        settings, results, metric = run.settings, run.results, run.metric
        rows.append(
            (
                run.folder.name,
                run.status,
                _shown(settings.get("data.name")),
                _ranks(settings),
                _shown(settings.get("optim.lr")),
                _shown(settings.get("optim.global_batch")),
                "-" if metric is None else f"{metric[0]} {metric[1]:.4f}",
                _shown(results.get("samples")),
                _shown(results.get("usd_estimate")),
                str(settings.get("commit") or "-")[:9] + ("+" if settings.get("dirty") else ""),
            )
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _ranks(settings: dict[str, Any]) -> str:
    """Their number and, where they share out more than the samples, how: "4 = pp 2 x tp 2"."""
    number, layout = settings.get("world_size"), str(settings.get("layout") or "").split(",")[0]
    plain = layout in ("", "one rank", f"dp_replicate {number}")
    return _shown(number) if plain else f"{_shown(number)} = {_shown(layout)}"


def _aligned(found: list[Difference]) -> list[str]:
    rows = [(each.name, _shown(each.first), _shown(each.second)) for each in found]
    name, first = (max(len(row[place]) for row in rows) for place in (0, 1))
    return [f"  {row[0]:<{name}}  {row[1]:<{first}}  {row[2]}" for row in rows]


def _shown(value: Any) -> str:
    """A value on one line: the record may be somebody else's."""
    from dtlab.errors import one_line

    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value), 80)
