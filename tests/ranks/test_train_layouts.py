"""`dtlab train` of the small GPT in every layout of ranks: as one rank, resumed, moved to another layout."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

import dtlab
from dtlab.data.config import DataConfig
from dtlab.data.text import Text, TextWindows
from dtlab.parallel.sharded import local_part
from dtlab.ranks import agreement
from dtlab.train import tasks
from dtlab.train.config import ModelConfig, OptimConfig, RunConfig, TrainConfig
from dtlab.train.config_core import CheckpointConfig, StoppingConfig
from dtlab.train.config_parallel import ParallelConfig
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.job import run
from dtlab.train.package import load_package
from dtlab.train.step import FullStep
from dtlab.train.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:'generators' was saved in")  # one rank is this process

BASE = TrainConfig(
    data=DataConfig(name="text"),
    model=ModelConfig(dim=8, num_layers=4, num_heads=2, sequence=16),
    optim=OptimConfig(lr=1e-3, global_batch=8, micro_batch=2, clip=0.5, max_epochs=2),
    schedule=ScheduleConfig(kind="linear", warmup=2),
    checkpoint=CheckpointConfig(every_steps=2, keep=9),
    run=RunConfig(dtype="float64", log_every=1, eval_batch=64, check_replicas_every=2),
)
LAYOUTS: dict[str, tuple[int, ParallelConfig]] = {
    "one rank": (1, ParallelConfig()),
    "fsdp 2": (2, ParallelConfig(dp_shard=2)),
    "tp 2": (2, ParallelConfig(tp=2)),
    "tp 2 by hand": (2, ParallelConfig(tp=2, engine="by_hand")),
    "pp 2": (2, ParallelConfig(pp=2)),
    "zero-1 on 2": (2, ParallelConfig(zero1=True)),
    "tp 2 x pp 2": (4, ParallelConfig(tp=2, pp=2, schedule="zero_bubble")),
    "tp 2 by hand x pp 2": (4, ParallelConfig(tp=2, pp=2, engine="by_hand", schedule="gpipe")),
    "dp 2 x pp 2": (4, ParallelConfig(pp=2)),
    "fsdp 2 x pp 2": (4, ParallelConfig(dp_shard=2, pp=2, schedule="interleaved")),
    "fsdp 2 x tp 2": (4, ParallelConfig(dp_shard=2, tp=2, sequence_parallel=True)),
    "overfit on one rank": (1, ParallelConfig()),
    "overfit under tp 2 x pp 2": (4, ParallelConfig(tp=2, pp=2)),
}


SAVED = {"one rank", "tp 2", "pp 2", "tp 2 by hand", "tp 2 x pp 2", "fsdp 2 x pp 2"}
SAVED |= {"overfit under tp 2 x pp 2"}


def small_text(sequence: int, root: Any = None) -> Text:
    """17 windows to train on, so that each epoch ends with a batch of one; 7 and 5 to score."""
    data = torch.randint(1, 256, (40 * 16 + 1,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    split = [
        TextWindows(data[16 * a : 16 * b + 1], sequence, first_id=a) for a, b in ((0, 17), (17, 24), (24, 29))
    ]
    return Text("text", *split, version="small")


def config_of(name: str, folder: Path, **changes: Any) -> TrainConfig:
    config = replace(BASE, parallel=LAYOUTS[name][1], **changes)
    if name.startswith("overfit"):  # the first epoch stays the best
        config = replace(config, optim=replace(config.optim, lr=5e-2))
    if name not in SAVED:
        config = replace(config, checkpoint=CheckpointConfig())
    return replace(config, run=replace(config.run, folder=folder))


class Job(NamedTuple):
    """A run, and the checkpoint that it is to go on from: the folder of another run and the step."""

    name: str
    config: TrainConfig
    source: Path | None = None
    step: int = 0


def train_all(jobs: list[Job]) -> dict[str, Any]:
    """Run the jobs in turn on the ranks of this world; their reports."""
    tasks.load_text = small_text
    found = {}
    with dtlab.world() as w:
        for job in jobs:
            if job.source is not None and w.is_main:
                interrupted(job.source, job.config.run.folder, job.step)
            w.barrier()
            found[job.name] = run(job.config)
    return found


def on_ranks(jobs: list[Job], skips: list[str], folder: Path) -> tuple[dict[str, Any], dict[str, list[bool]]]:
    """The reports of the jobs, and what ``poisoned`` says of the layouts ``skips``."""
    return train_all(jobs), poisoned(skips, folder)


def poisoned(names: list[str], folder: Path) -> dict[str, list[bool]]:
    """Train in each layout with nan in a gradient of rank 1 in step 2: which steps count?"""
    applied: list[bool] = []
    finish = FullStep._finish

    def with_nan(self: FullStep, step: int) -> None:
        if step == 2 and agreement.rank() == 1:
            local_part(self._parameters[0].grad).fill_(float("nan"))  # type: ignore[arg-type]
        finish(self, step)
        applied.append(self.applied)

    FullStep._finish = with_nan  # type: ignore[method-assign]
    found = {}
    for name in names:
        applied.clear()
        config = config_of(name, folder / f"{name} poisoned", stopping=StoppingConfig(non_finite="skip"))
        train_all([Job(name, config)])
        found[name] = list(applied)
    return found


def interrupted(source: Path, target: Path, step: int) -> None:
    """Make ``target`` the folder of a run that was interrupted when it had saved after ``step``."""
    (found,) = (source / "checkpoints").glob(f"save-*-step-{step:010d}")
    shutil.copytree(found, target / "checkpoints" / found.name)


def readings(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "reading"]


def epoch_losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "epoch"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(str(folder / "model" / "model.safetensors"))


MOVES = [
    ("tp 2 x pp 2", "one rank"),
    ("one rank", "tp 2 x pp 2"),
    ("tp 2 by hand", "pp 2"),
    ("fsdp 2 x pp 2", "zero-1 on 2"),
    ("overfit under tp 2 x pp 2", "overfit on one rank"),
]
"""Runs that go on at step 4 in another layout."""
AGAIN = ["tp 2 by hand", "tp 2 x pp 2", "fsdp 2 x pp 2"]
"""Runs that go on at step 2 in their own."""


POISONED = ["fsdp 2", "tp 2", "pp 2"]
"""Runs with nan in a gradient of one rank."""


def place_of(move: tuple[str, str]) -> str:
    return f"{move[0]} to {move[1]}"


def jobs_of(size: int, folder: Path) -> tuple[list[Job], list[Job]]:
    """The runs of the layouts of ``size`` ranks, and those that go on in one of them."""
    mine = [name for name, (ranks, _) in LAYOUTS.items() if ranks == size]
    fresh = [Job(name, config_of(name, folder / name)) for name in mine]
    later = [
        Job(place_of(move), config_of(move[1], folder / place_of(move)), folder / move[0], 4)
        for move in MOVES
        if move[1] in mine
    ]
    again = [
        Job(f"{name} again", config_of(name, folder / f"{name} again"), folder / name, 2)
        for name in AGAIN
        if name in mine
    ]
    return fresh, later + again


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """All runs, with few starts of ranks: one rank is this process, at the beginning and at the end."""
    folder = tmp_path_factory.mktemp("layouts")
    jobs = {size: jobs_of(size, folder) for size in (1, 2, 4)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "load_text", small_text)
        found = train_all(jobs[1][0])
        for size in (4, 2):  # what goes on with two ranks was saved by four, or by one
            skips = POISONED if size == 2 else []
            ranks = dtlab.launch(
                on_ranks, size, [*jobs[size][0], *jobs[size][1]], skips, folder, timeout=600, echo=False
            )
            found |= ranks[0][0]
            found["poisoned"] = [skipped for _, skipped in ranks]
        found |= train_all(jobs[1][1])
        yield folder, found


def alone(name: str) -> str:
    """The run in one process that a layout is held against."""
    return "overfit on one rank" if name.startswith("overfit") else "one rank"


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != alone(name)])
def test_a_layout_trains_as_one_rank(name: str, runs: Any) -> None:
    folder, reports = runs
    there, here = readings(folder / alone(name)), readings(folder / name)
    assert len(here) == len(there) == 6
    for a, b in zip(there, here, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-10)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-8)
        assert b["samples"] == a["samples"]
    for key, value in weights(folder / alone(name)).items():
        torch.testing.assert_close(weights(folder / name)[key], value, rtol=0, atol=1e-9)
    one, other = reports[alone(name)], reports[name]
    assert other["log_loss"] == pytest.approx(one["log_loss"], abs=1e-10)
    same = ("unique_rows_seen", "duplicate_rows", "samples", "optimizer_steps", "rows_test", "missed_rows")
    assert {key: other[key] for key in same} == {key: one[key] for key in same}
    assert (other["epochs"], other["epochs_tried"]) == ((1, 2) if name.startswith("overfit") else (2, 2))


@pytest.mark.parametrize("name", ["fsdp 2", "tp 2", "tp 2 by hand", "pp 2", "tp 2 x pp 2"])
def test_the_share_of_communication_is_measured(name: str, runs: Any) -> None:
    assert 0 < runs[1][name]["communication_share"] < 1
    first, *later = [line["communication_share"] for line in readings(runs[0] / name)]
    assert first is None, "the second step is the first that is sampled"
    assert all(0 <= share <= 1 for share in later), "what it says of the first is not the second's"


@pytest.mark.parametrize("name", ["tp 2 by hand", "tp 2 x pp 2", "fsdp 2 x tp 2"])
def test_the_package_is_the_whole_model(name: str, runs: Any) -> None:
    package = load_package(runs[0] / name)
    tokens = torch.arange(16)[None]
    expected = load_package(runs[0] / "one rank").model(tokens)
    torch.testing.assert_close(package.model(tokens), expected, rtol=0, atol=1e-8)
    assert package.about["layout"] == runs[1][name]["layout"]


def test_the_report_names_the_layout(runs: Any) -> None:
    words = {name: runs[1][name]["layout"] for name in LAYOUTS}
    assert words["tp 2 by hand x pp 2"] == "pp 2 x tp 2, by hand, gpipe with 4 micro-batches"
    assert words["fsdp 2 x tp 2"] == "dp_shard 2 x tp 2, sequence parallel"
    assert words["zero-1 on 2"] == "dp_replicate 2, ZeRO-1"


@pytest.mark.parametrize("move", MOVES)
def test_a_checkpoint_goes_on_in_another_layout(move: tuple[str, str], runs: Any) -> None:
    place = runs[0] / place_of(move)
    here, there = readings(place), readings(runs[0] / alone(move[1]))[4:]
    assert [line["step"] for line in here] == [5, 6]
    for a, b in zip(there, here, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-10)
    for key, value in weights(runs[0] / alone(move[1])).items():
        torch.testing.assert_close(weights(place)[key], value, rtol=0, atol=1e-9)
    # The first part of the epoch was added up by other ranks than the second.
    assert epoch_losses(place)[-1] == pytest.approx(epoch_losses(runs[0] / alone(move[1]))[-1], abs=1e-10)
    if move[1] == "one rank":
        record = (place / "record.jsonl").read_text()
        assert "the run goes on with parallel.tp 2 -> 1" in record


@pytest.mark.parametrize("name", AGAIN)
def test_a_resume_in_the_same_layout_is_equal_to_the_bit(name: str, runs: Any) -> None:
    assert [line["step"] for line in readings(runs[0] / f"{name} again")] == [3, 4, 5, 6]
    check_same_bits(runs[0] / f"{name} again", runs[0] / name)


def check_same_bits(one: Path, other: Path) -> None:
    here, there = weights(one), weights(other)
    assert here.keys() == there.keys()
    assert all(torch.equal(here[key], value) for key, value in there.items())


def killed_once(configs: dict[str, TrainConfig]) -> None:
    """Train each; in the first attempt at each the last rank dies in step 3."""
    step = Trainer.step

    def dies(self: Trainer, *arguments: Any) -> torch.Tensor:
        folder = next(config.run.folder for config in configs.values() if not is_finished(config))
        if self.steps_done == 3 and self.rank == 1 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments)

    Trainer.step = dies  # type: ignore[method-assign]
    train_all([Job(name, config) for name, config in configs.items() if not is_finished(config)])


def is_finished(config: TrainConfig) -> bool:
    return (config.run.folder / "model").exists()


def test_a_killed_rank_costs_no_bit_in_a_pipeline_and_under_tensor_parallelism(
    runs: Any, tmp_path: Path
) -> None:
    configs = {name: config_of(name, tmp_path / name) for name in ("pp 2", "tp 2")}
    result = dtlab.launch(killed_once, 2, configs, timeout=600, max_restarts=2, echo=False)
    assert result.restarts == 2
    for name in configs:
        check_same_bits(tmp_path / name, runs[0] / name)
        assert "resume" in (tmp_path / name / "record.jsonl").read_text()


def test_a_gradient_that_is_not_finite_in_one_part_is_skipped_by_all(runs: Any) -> None:
    for rank in runs[1]["poisoned"]:
        assert rank == {name: [True, True, False, True, True, True] for name in POISONED}
