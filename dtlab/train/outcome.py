"""What a run reports at its end, and when it was stopped before: one flat dict, the same on every rank."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dtlab.cost import billing
from dtlab.train.meter import peak_memory_bytes
from dtlab.train.metrics import Metrics

if TYPE_CHECKING:
    from dtlab.train.job import Job

__all__ = ["finished_report", "stopped_report"]


def finished_report(job: Job, test: Any) -> dict[str, Any]:
    """Everything about a run that came to its end."""
    stop = job.stopping if job.config.run.max_steps is None else None
    is_table = isinstance(test, Metrics)
    report = {
        **_so_far(job),
        "epochs": stop.best_epoch if stop is not None else job.parts.coverage.epochs,
        "epochs_tried": stop.epoch if stop is not None else job.parts.coverage.epochs,
        "auc": test.auc if is_table else None,
        "log_loss": test.log_loss if is_table else test.loss,
        "bits_per_byte": None if is_table else test.bits_per_byte,
        "rows_test": test.rows,
        "missed_rows": sum(job.parts.coverage.missed) if stop is not None else None,
        "auc_validation": stop.best if stop is not None and is_table else None,
        "auc_best_reachable": getattr(job.task.data, "best_auc", None),
        "stopped_by": None,
        "checkpoint": None,
    }
    return report


def stopped_report(job: Job, reason: str, waited: float) -> dict[str, Any]:
    """How far a run came that was stopped; ``waited``: seconds from the signal to the complete checkpoint."""
    good = job.checkpoints.status().last_good_step if job.checkpoints is not None else None
    return {
        **_so_far(job),
        "epochs": job.stopping.best_epoch,
        "epochs_tried": job.stopping.epoch,
        "auc": None,
        "auc_best_reachable": None,
        "stopped_by": reason,
        "phase": job.state["phase"],
        "checkpoint": good,
        "seconds_to_checkpoint": waited,
    }


def _so_far(job: Job) -> dict[str, Any]:
    trainer, passes = job.parts.trainer, job.state["passes"]
    seconds = job.budget.seconds
    bill = billing.cost(job.config.run.instance, seconds, count=job.world.num_nodes)
    trained = sum(entry["seconds"] for entry in passes)

    def share(name: str) -> float:
        return sum(entry[name] * entry["seconds"] for entry in passes) / trained if trained else 0.0

    return {
        "world_size": job.world.size,
        "layout": job.layout.words,
        "rows_train": len(job.task.data.train),
        "unique_rows_seen": job.parts.coverage.unique,
        "duplicate_rows": job.state["duplicates"],
        "optimizer_steps": trainer.steps_done - trainer.precision.skipped,
        "skipped_steps": trainer.precision.skipped,
        "samples": job.state["samples_before"] + trainer.samples,
        "samples_per_second": share("samples_per_second"),
        "communication_share": share("communication_share"),
        "wait_share": share("wait_share"),
        "memory_bytes": max(job.world.gather(peak_memory_bytes(), dst=None) or [0]),
        "seconds": seconds,
        "usd_estimate": round(bill.usd, 6),
        "bill": bill.line(),
        "data_version": job.task.data.version,
        "cache": _cache(job),
        "run": str(job.folder) if job.folder else None,
    }


def _cache(job: Job) -> dict[str, Any] | None:
    """How the cache of transformed columns answered, added up over the ranks (collective)."""
    counts = getattr(job.task.data, "cache_counts", None)
    if counts is None:
        return None
    parts = job.world.gather(asdict(counts), dst=None) or []
    return {
        "kind": job.config.data.cache,
        **{name: sum(part[name] for part in parts) for name in asdict(counts)},
    }
