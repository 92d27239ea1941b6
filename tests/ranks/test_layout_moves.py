"""A checkpoint or a whole state of one layout goes on in another: weights and moments equal to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

import dtlab
from dtlab.diagnose.layouts import Layout, LayoutTrainer, Task
from dtlab.errors import UserError
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.pipeline import Pipeline
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.full_state import gather_state, scatter_state
from dtlab.train.safetensors_io import export_model

TASK = Task(batch=8, clip=0.5)
LAYOUTS: dict[str, Layout | None] = {
    "fsdp 4": Layout(ParallelDims(dp_shard=4)),
    "dp 2 x tp 2": Layout(ParallelDims(dp_replicate=2, tp=2)),
    "fsdp 2 x tp 2": Layout(ParallelDims(dp_shard=2, tp=2)),
    "hsdp 2 x 2": Layout(ParallelDims(dp_replicate=2, dp_shard=2)),
    "dp 2 x pp 2": Layout(ParallelDims(dp_replicate=2, pp=2)),
    "fsdp 2": Layout(ParallelDims(dp_shard=2)),
    "zero-1 on 2": Layout(ParallelDims(dp_replicate=2), zero=True),
    "one process": None,
}
SAVED = ["fsdp 4", "dp 2 x tp 2", "fsdp 2 x tp 2", "zero-1 on 2", "one process"]
MOVES = [
    ("fsdp 4", "dp 2 x tp 2"), ("dp 2 x tp 2", "one process"), ("fsdp 2 x tp 2", "hsdp 2 x 2"),
    ("fsdp 4", "fsdp 2"), ("fsdp 2 x tp 2", "zero-1 on 2"), ("zero-1 on 2", "fsdp 4"),
    ("one process", "fsdp 2 x tp 2"), ("one process", "zero-1 on 2"),
]  # fmt: skip
STEP = 3


def size_of(name: str) -> int:
    layout = LAYOUTS[name]
    return 1 if layout is None else layout.dims.size


def save_all(folder: Path, names: list[str]) -> dict[str, Any]:
    """Train three steps, save, and say what the whole state is and what the next step gives."""
    found = {}
    with dtlab.world():
        for name in names:
            trainer = LayoutTrainer(LAYOUTS[name], TASK)
            for step in range(STEP):
                trainer.step(step)
            state = gather_state(trainer.model, trainer.optimizer)
            with Checkpointer(folder / name, asynchronous=False) as checkpoints:
                parts = {"model": trainer.model, "optimizer": trainer.optimizer}
                checkpoints.save(parts, STEP, samples=STEP * TASK.batch)
            found[name] = {"state": state, "next": trainer.step(STEP)}
    return found


def load_all(folder: Path, moves: list[tuple[str, str]]) -> dict[Any, Any]:
    found = {}
    with dtlab.world():
        for source, target in moves:
            trainer = LayoutTrainer(LAYOUTS[target], TASK)
            with Checkpointer(folder / source) as checkpoints:
                checkpoints.load({"model": trainer.model, "optimizer": trainer.optimizer})
            state = gather_state(trainer.model, trainer.optimizer)
            found[source, target] = {"state": state, "next": trainer.step(STEP)}
    return found


def pass_on(states: dict[str, Any], pairs: list[tuple[str, str]]) -> dict[Any, Any]:
    """Whole states from rank 0 into layouts, and out again; the pipeline too."""
    found = {}
    with dtlab.world() as w:
        for source, target in pairs:
            trainer = LayoutTrainer(LAYOUTS[target], TASK)
            scatter_state(states[source] if w.rank == 0 else {}, trainer.model, trainer.optimizer)
            state = gather_state(trainer.model, trainer.optimizer)
            found[source, target] = {"state": state, "next": trainer.step(STEP), "refused": ""}
            if isinstance(trainer.model, Pipeline):
                try:
                    export_model(trainer.modules[0], "nowhere")
                except UserError as error:
                    found[source, target]["refused"] = str(error)
    return found


PASSED = [("fsdp 4", "dp 2 x pp 2"), ("zero-1 on 2", "fsdp 2 x tp 2")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Any]], dict[Any, list[Any]]]:
    """(saved by layout, loaded by move): what each rank found. A launch for each world size and way."""
    folder = tmp_path_factory.mktemp("moves")
    saved: dict[str, list[Any]] = {}
    loaded: dict[Any, list[Any]] = {}
    for size in (1, 2, 4):
        names = [name for name in SAVED if size_of(name) == size]
        for rank in dtlab.launch(save_all, size, folder, names, timeout=300, echo=False):
            for name, found in rank.items():
                saved.setdefault(name, []).append(found)
    for size in (1, 2, 4):
        moves = [move for move in MOVES if size_of(move[1]) == size]
        for rank in dtlab.launch(load_all, size, folder, moves, timeout=300, echo=False):
            for move, found in rank.items():
                loaded.setdefault(move, []).append(found)
    states = {name: found[0]["state"] for name, found in saved.items()}
    for rank in dtlab.launch(pass_on, 4, states, PASSED, timeout=300, echo=False):
        for move, found in rank.items():
            loaded.setdefault(("passed on", *move), []).append(found)
    return saved, loaded


def check_equal(there: dict[str, Any], here: dict[str, Any]) -> None:
    assert here["model"].keys() >= {"embedding.token.weight", "blocks.1.mlp.output.weight"}
    for name, tensor in there["model"].items():
        assert torch.equal(here["model"][name], tensor), name
    moments = there["optimizer"]["state"]
    assert "head.output.weight" in moments, "a pipeline's last stage knows the tied matrix by it"
    assert here["optimizer"]["state"].keys() == moments.keys()
    for name, values in here["optimizer"]["state"].items():
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(values[key], moments[name][key]), (name, key)
    lr = [group["lr"] for group in here["optimizer"]["param_groups"]]
    assert lr == [group["lr"] for group in there["optimizer"]["param_groups"]]


@pytest.mark.parametrize("move", MOVES)
def test_a_checkpoint_goes_on_in_another_layout(move: tuple[str, str], runs: Any) -> None:
    saved, loaded = runs
    check_equal(saved[move[0]][0]["state"], loaded[move][0]["state"])
    for found in loaded[move]:
        assert found["next"] == pytest.approx(saved[move[0]][0]["next"], rel=1e-9)


@pytest.mark.parametrize("move", PASSED)
def test_a_whole_state_goes_on_in_another_layout(move: tuple[str, str], runs: Any) -> None:
    saved, loaded = runs
    found = loaded[("passed on", *move)]
    check_equal(saved[move[0]][0]["state"], found[0]["state"])
    assert found[0]["next"] == pytest.approx(saved[move[0]][0]["next"], rel=1e-9)


def test_one_stage_of_a_pipeline_is_not_saved_as_if_it_were_the_model(runs: Any) -> None:
    for found in runs[1][("passed on", *PASSED[0])]:
        assert "belongs to one stage of a pipeline" in found["refused"]
        assert "gather_state" in found["refused"]


def test_a_whole_state_is_held_by_rank_0_alone(runs: Any) -> None:
    saved, loaded = runs
    results = [*saved.values(), *loaded.values()]
    assert all(rank["state"] == {} for ranks in results for rank in ranks[1:])
    assert sum(len(ranks) for ranks in results) > len(results)
