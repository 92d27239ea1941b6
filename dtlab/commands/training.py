"""``dtlab train``, ``dtlab predict`` and ``dtlab prepare``."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dtlab.data.config import DataConfig
from dtlab.errors import UserError
from dtlab.train.config import TrainConfig

DEFAULT_RUN, DEFAULT_DATA = TrainConfig(), DataConfig()


def train(
    config_file: Path | None = None,
    /,
    *,
    config: Annotated[TrainConfig, Parameter(name="*")] = DEFAULT_RUN,
    nproc: int | None = None,
    report: Path | None = None,
    max_restarts: int = 0,
    timeout: float | None = None,
    port: int | None = None,
    resume: bool = False,
    dp_replicate: int | None = None,
    dp_shard: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
) -> int:
    """Train a model on one or more ranks, and report coverage, AUC, speed and price.

    Without a file, --model gpt or --data text trains the GPT on text, --data clicks a DeepFM on a table.

    Parameters
    ----------
    config_file
        TOML file with tables such as [data], [optim], [run]; it comes right after the word train.
    config
        Any field of those tables, for example --optim.lr 1e-3; a flag wins over the file.
    nproc
        Ranks on this machine (default: the product of the degrees below). Leave it out where torchrun or srun
        starts several.
    report
        JSON file for the report.
    max_restarts
        How many times a failed group of ranks is started again.
    timeout
        Seconds after which the run is stopped, with the late rank named.
    port
        Port on 127.0.0.1 where the ranks meet; by default any free one.
    resume
        Go on with the newest run in run.output that was interrupted.
    dp_replicate
        Short for --parallel.dp-replicate: copies of the model that see other samples; default: the rest.
    dp_shard
        Short for --parallel.dp-shard: ranks among which parameters are cut (FSDP); -1 is the rest.
    tp
        Short for --parallel.tp: ranks among which every matrix is cut.
    pp
        Short for --parallel.pp: pipeline stages, or ranks with several of them.
    """
    degrees = {"dp_replicate": dp_replicate, "dp_shard": dp_shard, "tp": tp, "pp": pp}
    given: dict[str, Any] = {name: degree for name, degree in degrees.items() if degree is not None}
    config = replace(config, parallel=replace(config.parallel, **given))
    from dtlab.files import require_writable
    from dtlab.ranks.environment import Membership, detect, named_world_of_one
    from dtlab.train.layout_check import check_layout
    from dtlab.train.record import write_json

    if report is not None:
        require_writable(report, "report")
    if nproc is not None and nproc < 1:
        raise UserError(f"nproc = {nproc}: must be at least 1")
    if resume:
        config = replace(config, run=replace(config.run, resume=True))
    alone = named_world_of_one(os.environ) if nproc is not None else None
    if alone is not None:
        print(f"dtlab: {alone} of this environment is ignored, as --nproc {nproc} was given", file=sys.stderr)
    member = Membership() if alone is not None else detect(os.environ)
    if member.launcher != "none":
        if nproc is not None:
            raise UserError(
                f"nproc = {nproc}: {member.size} ranks were started by another launcher ({member.launcher}); "
                "leave --nproc out"
            )
        from dtlab.train.job import run

        outcome = run(config)
        if member.rank != 0:
            return exit_code(outcome)
    else:
        from dtlab.ranks.launcher import launch
        from dtlab.ranks.report import RankError, RankStarterError
        from dtlab.train.job import run
        from dtlab.train.resume import after_failure, check_places, record_verdict

        env = {"DTLAB_INTERACTIVE": "1"} if sys.stderr.isatty() else {}
        ranks = config.parallel.least_ranks if nproc is None else nproc
        check_layout(config, ranks)
        check_places(config)
        began = time.time()
        try:
            results = launch(
                run,
                ranks,
                config,
                env=env,
                max_restarts=max_restarts,
                timeout=timeout,
                port=port,
                grace=config.checkpoint.grace_seconds,
            )
        except (RankError, RankStarterError) as error:
            if getattr(error, "exception_type", "") != "UserError":  # of which the record has the one line
                record_verdict(config, began, str(error).splitlines()[0])
            for line in after_failure(config, began):
                error.add_note(line)
            raise
        outcome = results[0]
    try:
        print(summary(outcome), flush=True)  # first: a report that cannot be written takes nothing with it
    finally:
        if report is not None:
            write_json(report, outcome)
    return exit_code(outcome)


def exit_code(outcome: dict) -> int:
    """128 + the number of the signal that stopped the run, as a shell reports it; else 0."""
    return {"SIGTERM": 143, "spot notice": 143, "SIGINT": 130}.get(outcome["stopped_by"], 0)


def summary(outcome: dict) -> str:
    """The report as a few aligned lines."""
    seen = f"{outcome['unique_rows_seen']:,} of {outcome['rows_train']:,} rows"
    if outcome["stopped_by"]:
        return _stopped(outcome, seen)
    best = f" (best reachable {outcome['auc_best_reachable']:.4f})" if outcome["auc_best_reachable"] else ""
    lines = [
        ("ranks", _ranks(outcome)),
        ("samples seen", f"{seen}, {outcome['duplicate_rows']:,} twice"),
        _length(outcome),
        _quality(outcome, best),
        *_cache(outcome),
        ("speed", f"{outcome['samples_per_second']:,.0f} samples/s"),
        ("communication", _share(outcome["communication_share"])),
        ("seconds", f"{outcome['seconds']:.1f}"),
        ("would cost", outcome["bill"]),
        ("run", outcome["run"] or "not recorded"),
    ]
    return "\n".join(f"{name:<14} {value}" for name, value in lines)


def _length(outcome: dict) -> tuple[str, str]:
    if outcome["missed_rows"] is None:  # a run of so many steps, which validates nothing
        return "steps", f"{outcome['optimizer_steps']:,}, as run.max_steps says"
    return "epochs", f"{outcome['epochs']} kept, {outcome['epochs_tried']} tried"


def _ranks(outcome: dict) -> str:
    """Their number, and what they share out beside the samples."""
    plain = f"dp_replicate {outcome['world_size']}"
    layout = outcome["layout"]
    return f"{outcome['world_size']}" + ("" if layout in (plain, "one rank") else f" = {layout}")


def _share(value: float) -> str:
    return "not measured in this layout" if math.isnan(value) else f"{value:.1%} of the step time"


def _quality(outcome: dict, best: str) -> tuple[str, str]:
    if outcome["auc"] is not None:
        return "test AUC", f"{outcome['auc']:.4f}{best}"
    return "test loss", f"{outcome['log_loss']:.4f} nats, {outcome['bits_per_byte']:.3f} bits per byte"


def _cache(outcome: dict) -> list[tuple[str, str]]:
    counts = outcome.get("cache")
    if counts is None or counts["kind"] == "none":
        return []
    return [
        ("cache", ", ".join(f"{counts[name]} {name}" for name in ("hits", "misses", "rebuilds", "waits")))
    ]


def _stopped(outcome: dict, seen: str) -> str:
    from dtlab.diagnose.record_checks import way_on

    saved = outcome["checkpoint"]
    lines = [
        ("stopped by", outcome["stopped_by"]),
        ("checkpoint", "none: the run has no folder" if saved is None else f"complete, at step {saved}"),
        ("samples", f"{outcome['samples']:,}"),
        ("seconds", f"{outcome['seconds']:.1f}"),
        ("would cost", outcome["bill"]),
        ("go on with", f"{way_on(outcome['stopped_by'])} and --resume" if saved is not None else "a new run"),
        ("run", outcome["run"] or "not recorded"),
    ]
    return "\n".join(f"{name:<14} {value}" for name, value in lines)


def predict(
    checkpoint: Path,
    parquet: Path,
    /,
    *,
    output: Path = Path("scores.parquet"),
    batch: int = 16384,
    row_numbers: bool = False,
) -> None:
    """Score every row of a Parquet file with a trained model.

    Parameters
    ----------
    checkpoint
        Folder that dtlab train left: the run's folder or its model folder.
    parquet
        File, or folder of shards, with the columns that the model was trained on.
    output
        Parquet file to write, with the columns id and score.
    batch
        Rows scored at once.
    row_numbers
        Use row numbers as ids when the file lacks the id column that the model was trained with.
    """
    from dtlab.train.predict import predict as score_file

    rows = score_file(checkpoint, parquet, output, batch=batch, row_numbers=row_numbers)
    print(f"{rows:,} rows scored -> {output}")


def prepare(*, config: Annotated[DataConfig, Parameter(name="*")] = DEFAULT_DATA) -> None:
    """Prepare a data set, so that later runs and lessons start at once and need no network.

    Parameters
    ----------
    config
        Which data: --name flights, --name clicks --rows 100000, or --name parquet with its columns.
    """
    from dtlab.data.datasets import load_dataset

    if config.name == "text":
        from dtlab.data.text import load_text

        text = load_text(root=config.root)
        print(f"text: {len(text.train.data):,} training bytes, version {text.version}")
        return
    if config.stream:
        from dtlab.data.stream_dataset import load_stream

    dataset = load_stream(config) if config.stream else load_dataset(config)
    print(
        f"{dataset.name}: {len(dataset.train):,} training, {len(dataset.validation):,} validation and "
        f"{len(dataset.test):,} test rows, version {dataset.version[:12]}"
    )
