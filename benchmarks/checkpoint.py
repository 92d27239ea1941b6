"""How long a checkpoint keeps training waiting: in the background, in the foreground, and as a bare copy.

Two ranks train a replicated MLP with AdamW; parameters and moments make 30 and 160 MB. Per size, in turn: a
save that training awaits (to the disk, with fsync), the wait for a background save, a copy of the same
tensors into memory that is there already, and the same state through torch.distributed.checkpoint's
safetensors storage. Then 100 steps with one background save inside against 100 without, and the same with
``async_save`` of torch.distributed.checkpoint. Medians; rank 0, which writes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import dtlab
from benchmarks.common import Figure, report, say
from dtlab.parallel.ddp import data_parallel
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.state import flatten

SIZES_MB, REPEATS, STEPS, STEP_REPEATS = (30, 160), 7, 100, 2


def measure(folder: Path, megabytes: int) -> dict[str, float]:
    with (
        dtlab.world() as w,
        Checkpointer(folder / "sync", asynchronous=False) as foreground,
        Checkpointer(folder / "async") as background,
    ):
        width = int((megabytes * 1e6 / 12 / 8) ** 0.5)
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))
        wrapped = data_parallel(model, w)
        optimizer = torch.optim.AdamW(wrapped.parameters())
        x = torch.randn(8, width)

        def step() -> None:
            optimizer.zero_grad()
            wrapped(x).square().mean().backward()
            optimizer.step()

        step()
        parts = {"model": wrapped, "optimizer": optimizer}
        tensors, _ = flatten({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        buffers = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}

        def copy() -> None:
            for name, tensor in tensors.items():
                buffers[name].copy_(tensor)

        def through_dcp() -> None:
            with tempfile.TemporaryDirectory(dir=folder) as place:
                writer = dcp.HuggingFaceStorageWriter(w.broadcast(place), save_distributed=True)
                dcp.save(dict(tensors), storage_writer=writer)
                w.barrier()

        calls: dict[str, Callable[[], Any]] = {
            "sync": lambda: foreground.save(parts, 1, samples=0),
            "async": lambda: background.save(parts, 1, samples=0),
            "copy": copy,
            "dcp": through_dcp,
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for repeat in range(REPEATS + 1):
            for name, call in calls.items():
                w.barrier()
                started = time.perf_counter()
                call()
                seconds = time.perf_counter() - started
                background.wait()
                if repeat > 0:  # the first one makes buffers
                    times[name].append(seconds)

        def dcp_in_background() -> Any:
            place = Path(w.broadcast(tempfile.mkdtemp(dir=folder)))
            writer = dcp.HuggingFaceStorageWriter(str(place), save_distributed=True)
            return dcp.async_save(dict(tensors), storage_writer=writer, process_group=own)

        def steps(save: Callable[[], Any] | None = None) -> float:
            w.barrier()
            started = time.perf_counter()
            for number in range(STEPS):
                step()
                if save is not None and number == STEPS // 4:
                    future = save()
            seconds = time.perf_counter() - started
            background.wait()
            if save is dcp_in_background:
                future.result()
            return seconds

        own = torch.distributed.new_group(backend="gloo")
        with_save, with_dcp = [], []
        for _ in range(STEP_REPEATS):
            plain = steps()
            with_save.append(steps(calls["async"]) / plain - 1)
            with_dcp.append(steps(dcp_in_background) / plain - 1)
        found = {name: statistics.median(values) for name, values in times.items()}
        shares = [a / b for a, b in zip(times["async"], times["sync"], strict=True)]
        return {
            **found,
            "share": statistics.median(shares),
            "growth": statistics.median(with_save),
            "dcp_growth": statistics.median(with_dcp),
        }


def main() -> None:
    warnings.simplefilter("ignore")
    figures: dict[str, Figure] = {}
    shares = []
    for megabytes in SIZES_MB:
        say(f"{megabytes} MB ...")
        with tempfile.TemporaryDirectory(dir=".") as folder:
            found = dtlab.launch(measure, 2, Path(folder).absolute(), megabytes, timeout=900, echo=False)[0]
        shares.append(found["share"])
        figures |= {
            f"sync_seconds_{megabytes}mb": found["sync"],
            f"async_blocked_seconds_{megabytes}mb": found["async"],
            f"async_blocked_share_{megabytes}mb": found["share"],
            f"memory_copy_share_{megabytes}mb": found["copy"] / found["sync"],
            f"growth_of_100_steps_{megabytes}mb": found["growth"],
            f"growth_with_dcp_async_save_{megabytes}mb": found["dcp_growth"],
            f"dcp_over_sync_{megabytes}mb": found["dcp"] / found["sync"],
        }
    figures["async_blocked_share"] = max(shares)
    report(
        "Checkpoints: what training waits for (2 ranks, replicated MLP with AdamW)",
        figures,
        [
            "share: of the time of a save that training awaits; target for async: <= 0.35",
            "memory_copy_share: both ranks copy; in a save only rank 0 does",
            "dcp_over_sync: torch.distributed.checkpoint's safetensors storage over dtlab's foreground save",
        ],
    )


if __name__ == "__main__":
    main()
