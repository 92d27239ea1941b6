"""The ladder on real ranks: a sound job climbs, and each planted fault stops it at its own rung."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

import dtlab
from dtlab.data.config import DataConfig
from dtlab.diagnose.climb import MEASURES, Climb, Plan, State, climb, parity_figures
from dtlab.diagnose.ladder import RUNGS, Figures, Rung
from dtlab.diagnose.parity import loss_parity
from dtlab.diagnose.trajectory import Trajectory, TrajectoryRecorder
from dtlab.train.config import ModelConfig, OptimConfig, RunConfig, TrainConfig

ROOT = Path(__file__).resolve().parents[2]
DATA = DataConfig(name="clicks", rows=20_011, root=str(ROOT / "data"))
ROWS_PER_RANK = 256


def plan(folder: Path, lr: float = 5e-3, **fields) -> Plan:
    config = TrainConfig(
        data=DATA,
        model=ModelConfig(dim=4, hidden=(16,)),
        optim=OptimConfig(lr=lr, global_batch=2 * ROWS_PER_RANK, max_epochs=2),
        run=RunConfig(output=folder / "runs", folder=folder / "own"),
    )
    return Plan(config=config, steps=5, timeout=120, **fields)


def easy(state: State) -> Figures:
    """Shares of a step that pass: those of a busy test machine say nothing of the code."""
    return replace(state.figures, communication_share=0.1, busy_share=0.9)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> tuple[Climb, list[Rung], Figures, Path]:
    folder, seen, measured = tmp_path_factory.mktemp("sound"), [], []

    def communication(state: State) -> Figures:
        measured.append(MEASURES["communication"](state))
        return easy(state)

    found = climb(
        plan(folder, start=64, most=1024, memory_bytes=10**9),
        on_rung=seen.append,
        measures={"communication": communication},
    )
    return found, seen, measured[0], folder


def test_a_sound_job_climbs_to_the_top(sound) -> None:
    found, seen, _, _ = sound
    assert found.ladder.ready, str(found.ladder)
    assert tuple(seen) == found.ladder.rungs
    assert found.figures.ranks_answered == 2
    assert 0.01 <= found.figures.data_share < 0.1
    assert found.figures.loss_difference < 1e-5


def test_communication_and_utilisation_are_measured_shares_of_one_time(sound) -> None:
    _, _, measured, _ = sound
    assert 0 < measured.communication_share < 1
    assert 0 < measured.busy_share <= 1 - measured.communication_share + 1e-9


def test_the_batch_is_doubled_on_the_jobs_own_model(sound) -> None:
    found, _, _, _ = sound
    assert [one.batch for one in found.batches.tried] == [64, 128, 256, 512, 1024]
    assert (found.figures.batch, found.figures.largest_batch) == (ROWS_PER_RANK, 1024)
    assert found.figures.memory_share == found.batches.tried[2].share


def test_the_climb_leaves_nothing_behind_and_the_runs_own_folder_alone(sound) -> None:
    folder = sound[3]
    assert list(folder.iterdir()) == []


def stopped(found: Climb, name: str) -> str:
    assert found.ladder.stopped_at is not None, str(found.ladder)
    assert found.ladder.stopped_at.name == name
    assert {one.verdict for one in found.ladder.rungs[RUNGS.index(name) + 1 :]} <= {"not reached"}
    return found.ladder.stopped_at.value


def lost_peer() -> float:
    with dtlab.world() as w:
        if w.rank == 1:
            raise ConnectionError("no route to rank 0")
        return w.mean(1.0)


def test_ranks_that_cannot_talk_stop_at_the_first_rung(tmp_path) -> None:
    def talk(state: State) -> Figures:
        sums = dtlab.launch(lost_peer, state.plan.nproc, timeout=60, echo=False)
        return replace(state.figures, ranks_answered=len(sums))

    said = stopped(climb(plan(tmp_path), measures={"ranks talk": talk}), "ranks talk")
    assert "rank 1 of 2 failed" in said
    assert "no route to rank 0" in said


def test_a_run_whose_weights_are_lost_stops_at_the_end_to_end_rung(tmp_path) -> None:
    said = stopped(climb(plan(tmp_path, lr=1e30)), "1 % end to end")
    assert "optim.lr = 1e+30" in said


def without_sync() -> Trajectory:
    """Every rank trains on its own rows, and nobody shares a gradient."""
    with dtlab.world(seed=0) as w:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        recorder = TrajectoryRecorder(net)
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        rows = torch.rand(64, 4, generator=torch.Generator().manual_seed(1))[w.rank :: w.size]
        for _ in range(3):
            loss = (net(rows).squeeze(1) - rows[:, 0]).square().sum()
            net.zero_grad()
            (loss / len(rows)).backward()
            sgd.step()
            recorder.add(loss, len(rows))
        return recorder.result()


def test_a_training_function_without_gradient_sync_stops_at_the_parity_rung(tmp_path) -> None:
    def agree(state: State) -> Figures:
        return parity_figures(state.figures, loss_parity(without_sync, state.plan.nproc, timeout=60))

    ways = {"ranks talk": skip, "1 % end to end": skip, "ranks agree": agree}
    found = climb(plan(tmp_path), measures=ways)
    assert "the ranks ended with different models" in stopped(found, "ranks agree")
    assert "data_parallel" in found.ladder.stopped_at.fix


def skip(state: State) -> Figures:
    """The rungs below are those of other tests."""
    return state.figures


def test_a_rank_with_too_little_memory_stops_at_the_memory_rung(tmp_path) -> None:
    sound = plan(tmp_path, memory_bytes=3_000_000)
    large = replace(sound, config=replace(sound.config, optim=OptimConfig(global_batch=15_000)))
    found = climb(large, measures=dict.fromkeys(RUNGS[:3], skip) | {"communication": easy})
    assert "rows per rank fit, the job has 7,500" in stopped(found, "memory")
    assert 256 <= found.figures.largest_batch < 7_500
    assert found.batches.tried[-1].batch == 7_500, "the job's own batch is tried as well"
    assert "7,500" in found.batches.stopped


@pytest.mark.parametrize(
    ("share", "name"), [({"communication_share": 0.5}, "communication"), ({"busy_share": 0.5}, "utilisation")]
)
def test_a_step_that_waits_stops_at_its_rung(tmp_path, share, name) -> None:
    ways = dict.fromkeys(RUNGS, skip) | {"communication": lambda state: replace(easy(state), **share)}
    assert "50.0 %" in stopped(climb(plan(tmp_path), measures=ways), name)


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_in_the_middle_of_a_climb_ends_it_with_a_line_and_without_a_rank_left(
    number, code, said
) -> None:
    words = (
        f"ladder --data.name clicks --data.rows 20011 --data.root {ROOT / 'data'} --model.hidden 16 --steps 5"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "dtlab.cli", *words.split()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("passed       ranks talk")
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1:]) == (code, [f"dtlab: {said}"]), err
    assert "Traceback" not in err
    assert not psutil.wait_procs(children, timeout=30)[1]
