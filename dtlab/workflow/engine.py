"""Run a pipeline: what has changed is done again, what has not is skipped, and every step says why.

A step is chosen by the content of what it reads (``inputs``). When a step that runs again leaves the same
outputs as before, the steps behind it are skipped. A killed pipeline finds its finished steps; the train step
goes on from its last checkpoint.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dtlab.errors import UserError
from dtlab.files import require_folder
from dtlab.train.record import write_json
from dtlab.workflow.config import Pipeline
from dtlab.workflow.inputs import AFTER, STEPS, changed, inputs_of, raw_version
from dtlab.workflow.store import Done, Store

__all__ = ["Finished", "StepReport", "look", "run"]

SUMMARY = "summary.json"
RUN = "run"
Action = Literal["run", "skip", "resume", "wait", "refused"]
_MOST_NAMED = 4


@dataclass(frozen=True)
class StepReport:
    """What a step does, or did, and why.

    Attributes:
        step: its name.
        action: run, skip, resume (train goes on from a checkpoint), wait (decided when the steps before are
            done), or refused (the model does not reach what is asked of it).
        reason: in words.
        folder: of its outputs; None where that is not known yet.
        seconds: that it took now; 0 for a skipped step.
        facts: what its outputs hold; {} where there are none yet.
    """

    step: str
    action: Action
    reason: str
    folder: Path | None
    seconds: float
    facts: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """How a pipeline ended.

    Attributes:
        steps: in their order.
        stopped_by: the signal or budget that ended the train step, else None.
        missed: what the model does not reach, for which it was not packaged.
        archive: the packaged model, or None.
    """

    folder: Path
    steps: tuple[StepReport, ...]
    stopped_by: str | None
    missed: tuple[str, ...]
    archive: Path | None

    @property
    def passed(self) -> bool:
        """Whether there is a packaged model."""
        return self.archive is not None

    def facts(self, step: str) -> dict[str, Any]:
        """What the outputs of a step hold."""
        return next((each.facts for each in self.steps if each.step == step), {})

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        metrics, trained = self.facts("evaluate"), self.facts("train")
        return {
            "passed": self.passed,
            "folder": str(self.folder),
            "archive": None if self.archive is None else str(self.archive),
            "auc": metrics.get("auc"),
            "auc_validation": metrics.get("auc_validation"),
            "log_loss": metrics.get("log_loss"),
            "latency": metrics.get("latency"),
            "data_version": self.facts("prepare").get("version"),
            "usd_estimate": trained.get("usd_estimate"),
            "stopped_by": self.stopped_by,
            "missed": list(self.missed),
            "steps": [
                {
                    "step": each.step,
                    "action": each.action,
                    "reason": each.reason,
                    "folder": None if each.folder is None else str(each.folder),
                    "seconds": round(each.seconds, 3),
                    "facts": each.facts,
                }
                for each in self.steps
            ],
        }


def look(pipeline: Pipeline) -> list[StepReport]:
    """What ``run`` would do now, and why. Nothing is run, nothing is written.

    Raises:
        UserError: the data are not there, or a setting does not fit them.
    """
    store = Store(pipeline.options.folder)
    require_folder(store.folder, "pipeline.folder")
    raw = raw_version(pipeline.train.data, store.folder)
    done: dict[str, Done] = {}
    found = []
    for step in STEPS:
        waits = [name for name in AFTER[step] if name not in done]
        if waits:
            found.append(StepReport(step, "wait", f"decided after {waits[-1]}", None, 0.0, {}))
            continue
        report, before = _decide(store, pipeline, step, done, raw, again=False)
        if before is not None:
            done[step] = before
        found.append(report)
    return found


def run(
    pipeline: Pipeline,
    *,
    again: str | None = None,
    echo: bool = True,
    tell: Callable[[str], None] = print,
) -> Finished:
    """Run the pipeline to its end, or until the train step is stopped or the model falls short.

    Args:
        pipeline: from its file.
        again: a step that is done anew even if nothing has changed.
        echo: show the output of the ranks.
        tell: takes a line for every step.

    Raises:
        UserError: a setting, the data or a place is wrong; what is finished by then is kept.
        RankError: a rank of the train step failed.
    """
    options = pipeline.options
    store = Store(options.folder)
    with store.alone():
        raw = raw_version(pipeline.train.data, store.folder)
        done: dict[str, Done] = {}
        reports: list[StepReport] = []
        stopped, missed = None, []
        for step in STEPS:
            report, finished = _decide(store, pipeline, step, done, raw, again=step == again)
            if step == "package":
                from dtlab.workflow.steps import missed as falls_short

                missed = falls_short(done["evaluate"].facts, options)
                if missed:
                    report = replace(report, action="refused", reason="; ".join(missed), facts={})
            tell(_line(report))
            if report.action == "refused":
                reports.append(report)
                break
            if finished is None:
                began = time.monotonic()
                finished, stopped = _work(store, pipeline, step, done, raw, report, echo)
                facts = {} if finished is None else finished.facts
                report = replace(report, seconds=time.monotonic() - began, facts=facts)
            reports.append(report)
            if finished is None:
                break
            done[step] = finished
        last = reports[-1]
        archive = None
        if last.step == "package" and last.action != "refused" and last.folder is not None:
            archive = last.folder / str(last.facts["archive"])
        result = Finished(options.folder, tuple(reports), stopped, tuple(missed), archive)
        write_json(options.folder / SUMMARY, result.to_dict(), "pipeline.folder")
    return result


def _decide(
    store: Store, pipeline: Pipeline, step: str, done: dict[str, Done], raw: str, *, again: bool
) -> tuple[StepReport, Done | None]:
    """What is to be done about a step whose predecessors are done; and the step itself if it is done."""
    inputs = inputs_of(step, pipeline, {name: each.digest for name, each in done.items()}, raw)
    place = store.place(step, inputs)
    finished, wrong = store.find(step, inputs)
    if again and place.is_dir():
        return StepReport(step, "run", "asked for with --again", place, 0.0, {}), None
    if finished is not None:
        return StepReport(step, "skip", "nothing has changed", place, 0.0, finished.facts), finished
    if wrong is not None:
        way = _way_on(place) if step == "train" and wrong == "was not finished" else None
        if way is not None:
            return StepReport(step, "resume", way, place, 0.0, {}), None
        return StepReport(step, "run", wrong, place, 0.0, {}), None
    last = store.newest(step)
    if last is None:
        return StepReport(step, "run", "was never done", place, 0.0, {}), None
    named = changed(last.inputs, inputs)
    rest = len(named) - _MOST_NAMED
    text = ", ".join(named[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return StepReport(step, "run", f"changed: {text}", place, 0.0, {}), None


def _work(
    store: Store,
    pipeline: Pipeline,
    step: str,
    done: dict[str, Done],
    raw: str,
    report: StepReport,
    echo: bool,
) -> tuple[Done | None, str | None]:
    """Do a step; None and why where the train step was stopped before its end."""
    from dtlab.workflow import steps

    inputs = inputs_of(step, pipeline, {name: each.digest for name, each in done.items()}, raw)
    place = store.place(step, inputs)
    _clear(store, step, inputs, keep_run=report.action == "resume")
    config, options = pipeline.train, pipeline.options
    began = time.monotonic()
    folders = {name: store.place(name, each.inputs) for name, each in done.items()}
    if step == "prepare":
        outcome = steps.prepare(config.data, place)
    elif step == "features":
        outcome = steps.features(config.data, place, refit=steps.refits(config), prepared=folders["prepare"])
    elif step == "train":
        trained, stopped = _train(pipeline, place, echo)
        if trained is None:
            return None, stopped
        outcome = trained
    else:
        model = folders["train"] / RUN / "model"
        if step == "evaluate":
            outcome = steps.evaluate(config, options, place, model=model, prepared=folders["prepare"])
        else:
            outcome = steps.package(
                place, model=model, prepared=folders["prepare"], evaluated=folders["evaluate"]
            )
    seconds = time.monotonic() - began
    finished = store.finish(
        step, inputs, outcome.outputs, outcome.facts, elsewhere=outcome.elsewhere, seconds=seconds
    )
    return finished, None


def _clear(store: Store, step: str, inputs: dict[str, Any], *, keep_run: bool) -> None:
    """Make room for a step that is done anew; a run that goes on keeps its folder."""
    store.forget(step, inputs)
    place = store.place(step, inputs)
    if place.is_dir() and not keep_run:
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)


def _train(pipeline: Pipeline, place: Path, echo: bool) -> tuple[Any, str | None]:
    """The run on ranks, in its own folder, where it goes on if it was killed."""
    from dtlab.ranks.launcher import launch
    from dtlab.train.job import run as train_run
    from dtlab.train.layout_check import check_layout
    from dtlab.train.package import DESCRIPTION, WEIGHTS
    from dtlab.workflow.steps import Outcome

    options, config = pipeline.options, pipeline.train
    config = replace(config, run=replace(config.run, folder=place / RUN))
    check_layout(config, options.nproc)
    report = _finished_report(place / RUN)
    if report is None:
        report = launch(
            train_run,
            options.nproc,
            config,
            echo=echo,
            timeout=options.timeout,
            grace=config.checkpoint.grace_seconds,
        )[0]
    if report["stopped_by"] is not None:
        return None, report["stopped_by"]
    return Outcome((f"{RUN}/model/{DESCRIPTION}", f"{RUN}/model/{WEIGHTS}"), report), None


def _finished_report(folder: Path) -> dict[str, Any] | None:
    """The report of a run that had ended when the pipeline was killed."""
    from dtlab.train.package import load_package

    try:
        about = load_package(folder).about if (folder / "model").is_dir() else None
    except UserError:
        return None
    return about if isinstance(about, dict) and "stopped_by" in about else None


def _way_on(place: Path) -> str | None:
    """How a train step that was not finished goes on; None where it begins anew."""
    from dtlab.train.checkpoint_store import newest_complete
    from dtlab.train.resume import CHECKPOINTS

    if _finished_report(place / RUN) is not None:
        return "its run had ended when the pipeline did"
    info = newest_complete(place / RUN / CHECKPOINTS)
    return None if info is None else f"was not finished: goes on from step {info.step:,}"


def _line(report: StepReport) -> str:
    return f"{report.step:<9} {report.action:<8} {report.reason}"
