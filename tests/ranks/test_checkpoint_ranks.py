"""Checkpoints on real ranks: resumed runs equal uninterrupted ones, whatever interrupted them."""

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dtlab
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.errors import DtlabWarning, UserError
from dtlab.parallel.ddp import data_parallel, unwrap
from dtlab.ranks.seeds import seed_everything
from dtlab.train import checkpoint_write
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.checkpoint_entry import on_rank_0
from dtlab.train.generators import Generators
from dtlab.train.safetensors_io import export_model, import_model
from dtlab.train.settle import settle_buckets

pytestmark = pytest.mark.filterwarnings("ignore::dtlab.errors.DtlabWarning")

SAMPLES, BATCH, EPOCHS = 101, 12, 3
STEPS = EPOCHS * 9


def launch(function: Any, nproc: int, *args: Any, **kwargs: Any) -> list[Any]:
    return list(dtlab.launch(function, nproc, *args, timeout=90, echo=False, **kwargs))


class Net(nn.Module):
    """Its layers are used in another order than they are made, so that gradients arrive out of order."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.head = nn.Linear(32, 1)
        self.body = nn.Linear(8, 32)
        self.middle = nn.Linear(32, 32)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.dropout(self.body(x))))).squeeze(-1)


def train(
    folder: Path,
    *,
    until: int = STEPS,
    dropout: float = 0.0,
    save_every: int = 4,
    settle: bool = True,
    kill: tuple[int, int, float] | None = None,
) -> dict[str, Any]:
    """Train to step ``until``, resuming from ``folder``; ``kill``: SIGKILL rank r at step s, x s later."""
    warnings.simplefilter("ignore", DtlabWarning)
    with dtlab.world(seed=3) as w, Checkpointer(folder) as checkpoints:
        seed_everything(7, 0)
        data, target = torch.randn(SAMPLES, 8), torch.randn(SAMPLES)
        model = Net(dropout)
        seed_everything(7, w.rank)
        wrapped = data_parallel(model, w)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
        sampler = GlobalBatchSampler(SAMPLES, BATCH, seed=5)
        if settle:
            settle_buckets(wrapped, lambda m: m(data[:0]).sum())
        parts = {"model": wrapped, "optimizer": optimizer, "sampler": sampler, "generators": Generators()}
        info = checkpoints.load(parts)
        step = start = info.step if info else 0
        samples, seen = (info.samples if info else 0), []
        while step < until:
            for rows in sampler:
                seen.append((step, [int(row) for row in rows]))
                loss = (wrapped(data[rows]) - target[rows]).square().sum()
                optimizer.zero_grad()
                (loss * w.size / sampler.last_size).backward()
                optimizer.step()
                step, samples = step + 1, samples + sampler.last_size
                if step % save_every == 0:
                    checkpoints.save(parts, step, samples=samples)
                if kill is not None and kill[:2] == (w.rank, step):
                    time.sleep(kill[2])
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == until:
                    break
        draws = torch.rand(3).tolist()
        checkpoints.wait()
        state = {name: tensor.clone() for name, tensor in unwrap(wrapped).state_dict().items()}
        return {
            "state": state, "start": start, "seen": seen, "draws": draws, "samples": samples,
            "lines": checkpoints.lines, "status": checkpoints.status(step),
        }  # fmt: skip


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def samples_of(runs: list[list[dict[str, Any]]], steps: int = STEPS) -> list[list[int]]:
    """The samples of each step over all ranks; a later run's steps replace those it went back over."""
    by_step: dict[int, list[int]] = {}
    for ranks in runs:
        for step in range(ranks[0]["start"], steps):
            by_step[step] = []
        for rank in ranks:
            for step, rows in rank["seen"]:
                by_step[step] += rows
    return [sorted(by_step[step]) for step in range(steps)]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> list[dict[str, Any]]:
    """Three ranks that nothing interrupts."""
    return launch(train, 3, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_resumed_run_on_three_ranks_ends_with_the_same_bits(tmp_path, whole_run, dropout):
    whole = whole_run if dropout == 0 else launch(train, 3, tmp_path / "whole", dropout=dropout)
    first = launch(train, 3, tmp_path / "cut", until=14, dropout=dropout)
    rest = launch(train, 3, tmp_path / "cut", dropout=dropout)
    assert {run["start"] for run in rest} == {12}  # the newest save, in the middle of the second epoch
    for a, b in zip(whole, rest, strict=True):
        assert equal(a["state"], b["state"])
        assert a["draws"] == b["draws"]
    assert samples_of([whole]) == samples_of([first, rest])
    assert [sum(map(len, samples_of([whole])[9 * e : 9 * e + 9])) for e in range(EPOCHS)] == [
        SAMPLES
    ] * EPOCHS


def test_without_settled_buckets_the_bits_of_a_resumed_run_differ_on_three_ranks(tmp_path):
    whole = launch(train, 3, tmp_path / "whole", settle=False)
    launch(train, 3, tmp_path / "cut", until=14, settle=False)
    rest = launch(train, 3, tmp_path / "cut", settle=False)
    assert not equal(whole[0]["state"], rest[0]["state"])


def test_a_run_of_two_ranks_goes_on_with_one_and_with_four(tmp_path):
    whole = launch(train, 2, tmp_path / "whole")
    launch(train, 2, tmp_path / "cut", until=13)
    for size in (1, 4):
        copy = tmp_path / f"on-{size}"
        shutil.copytree(tmp_path / "cut", copy)
        rest = launch(train, size, copy)
        assert rest[0]["start"] == 12
        assert samples_of([whole])[12:] == samples_of([whole, rest])[12:]
        assert rest[0]["samples"] == SAMPLES * EPOCHS
        for name, tensor in whole[0]["state"].items():
            torch.testing.assert_close(rest[0]["state"][name], tensor, rtol=1e-5, atol=1e-6)
        assert any(f"saved in a world of 2, and this one has {size}:" in line for line in rest[0]["lines"])
        draws = [tuple(run["draws"]) for run in rest]
        assert len(set(draws)) == size, "ranks share a random stream"


@pytest.mark.parametrize(("rank", "delay"), [(0, 0.002), (0, 0.01), (1, 0.001)])
def test_a_kill_while_a_checkpoint_is_written_loses_no_earlier_one(tmp_path, whole_run, rank, delay):
    with pytest.raises(dtlab.RankError, match="SIGKILL"):
        launch(train, 3, tmp_path / "cut", kill=(rank, 12, delay))
    rest = launch(train, 3, tmp_path / "cut")
    assert {run["start"] for run in rest} <= {8, 12}
    assert len({run["start"] for run in rest}) == 1
    for a, b in zip(whole_run, rest, strict=True):
        assert equal(a["state"], b["state"])
    assert not list((tmp_path / "cut").glob(".save-*"))


def save_and_die(folder: Path) -> None:
    with dtlab.world() as w, Checkpointer(folder) as checkpoints:
        checkpoints.save({"value": {"x": torch.ones(1000)}}, 5, samples=5)
        checkpoints.wait()

        def half(path: Path, tensors: Any) -> Any:
            path.write_bytes(b"\x00" * 500)
            os._exit(9)

        checkpoint_write.write_tensors = half
        checkpoints.save({"value": {"x": torch.zeros(1000)}}, 10, samples=10)
        if w.rank == 1:
            time.sleep(0.2)
        checkpoints.wait()


def resume_value(folder: Path) -> dict[str, Any]:
    with dtlab.world(), Checkpointer(folder) as checkpoints:
        value: dict[str, Any] = {}
        info = checkpoints.load({"value": value})
        return {"step": info.step, "sum": float(value["x"].sum()), "lines": checkpoints.lines}


def test_a_half_written_checkpoint_is_named_passed_over_and_removed(tmp_path):
    with pytest.raises(dtlab.RankError):
        launch(save_and_die, 2, tmp_path)
    assert [path.name for path in tmp_path.glob("save-*")] == ["save-000001-step-0000000005"]
    for found in launch(resume_value, 2, tmp_path):
        assert found["step"] == 5
        assert found["sum"] == 1000
        assert "save-000002-step-0000000010 was never finished" in found["lines"][0]
    assert not list(tmp_path.glob(".save-*"))


def one_rank_does_not_save(late: int, folder: Path) -> None:
    with dtlab.world() as w, Checkpointer(folder, enter_seconds=2) as checkpoints:
        if w.rank != late:
            checkpoints.save({"value": {"x": 1}}, 7, samples=1)
        else:
            time.sleep(30)


@pytest.mark.parametrize("late", [0, 1])  # rank 0 too, for which the others wait
def test_a_rank_that_does_not_enter_save_is_named(late, tmp_path):
    started = time.monotonic()
    with pytest.raises(dtlab.RankError) as caught:
        launch(one_rank_does_not_save, 3, late, tmp_path)
    assert time.monotonic() - started < 15
    assert f"all ranks must enter save(step=7), and rank {late} did not within 2 s" in str(caught.value)


def one_rank_does_not_load(call: str, late: int, folder: Path) -> None:
    with dtlab.world() as w, Checkpointer(folder, enter_seconds=0.5) as checkpoints:
        if w.rank == late:
            time.sleep(30)
        elif call == "load()":
            checkpoints.load({"value": {"x": 1}})
        else:
            checkpoints.latest()


@pytest.mark.parametrize(("call", "late"), [("load()", 0), ("load()", 1), ("latest()", 1)])
def test_a_rank_that_does_not_enter_load_is_named(call, late, tmp_path):
    with pytest.raises(dtlab.RankError) as caught:
        launch(one_rank_does_not_load, 2, call, late, tmp_path)
    assert f"all ranks must enter {call}, and rank {late} did not within 3 s" in str(caught.value)


def refused_by_rank_0(folder: Path) -> list[str]:
    def refuse() -> int:
        raise UserError("place = x: is full")

    def write() -> None:
        (folder / "missing" / "file").write_text("x")

    said = []
    with dtlab.world() as w:
        assert on_rank_0(lambda: 7 + w.rank) == 7
        for action in (refuse, write):
            with pytest.raises(UserError) as caught:
                on_rank_0(action)
            said.append(str(caught.value))
    return said


def test_what_rank_0_refuses_all_refuse(tmp_path):
    for refused, missing in launch(refused_by_rank_0, 3, tmp_path):
        assert refused == "place = x: is full"
        assert "No such file or directory" in missing


def disagree(folder: Path) -> dict[str, Any]:
    with dtlab.world() as w, Checkpointer(folder, on_failure="raise") as checkpoints:
        found: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DtlabWarning)
            checkpoints.save({"loss": {"value": 0.5 + w.rank}}, 1, samples=1)
            checkpoints.wait()
        found["lines"] = checkpoints.lines
        back: dict[str, Any] = {}
        checkpoints.load({"loss": back})
        found["value"] = back["value"]
        for name, parts, step in (
            ("object", {"config": {"x": object() if w.rank == 1 else 1}}, 2),
            ("step", {"x": {}}, 2 + w.rank),
        ):
            with pytest.raises(UserError) as caught:
                checkpoints.save(parts, step, samples=1)
            found[name] = str(caught.value)
        with pytest.raises(UserError) as caught:
            checkpoints.load({"model": nn.Linear(1, 1)})
        found["part"] = str(caught.value)
        with pytest.raises(UserError) as caught:
            Checkpointer(folder)
        found["second"] = str(caught.value)
        return found


def test_what_one_rank_finds_wrong_every_rank_says(tmp_path):
    one, two = launch(disagree, 2, tmp_path)
    assert one == two
    assert one["value"] == 0.5
    assert "part 'loss' differs between the ranks and rank 0's is saved" in one["lines"][0]
    assert one["object"].startswith("rank 1: config/x is a object")
    assert one["step"] == "step = [2, 3] on the ranks: give the same to save() on every rank"
    assert "has no part 'model': it has loss" in one["part"]
    assert "this process writes to it already" in one["second"]


def apart(folder: Path) -> tuple[float, str]:
    """As on two hosts that do not share a folder."""
    with dtlab.world() as w, Checkpointer(folder / f"host{w.rank}") as checkpoints:
        model, _, _ = sharded_model(w)
        with pytest.raises(UserError, match="sharded tensors need a folder that all hosts share"):
            save_and_wait(checkpoints, {"model": model})
        save_and_wait(checkpoints, {"value": {"x": 1.5}})
        value: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DtlabWarning)
            with pytest.raises(UserError) as caught:
                checkpoints.load({"value": value})
        w.barrier()
        if w.rank == 0:
            shutil.copytree(folder / "host0", folder / "host1", dirs_exist_ok=True)
        w.barrier()
        checkpoints.load({"value": value})
        return value["x"], str(caught.value)


def save_and_wait(checkpoints: Checkpointer, parts: dict[str, Any]) -> None:
    checkpoints.save(parts, 1, samples=1)
    checkpoints.wait()


def test_hosts_that_do_not_share_the_folder_never_begin_anew_by_accident(tmp_path):
    for value, words in launch(apart, 2, tmp_path):
        assert value == 1.5
        assert "rank 1 does not see the checkpoints that rank 0 sees" in words


def save_wrapped(folder: Path, wrap: bool) -> list[str]:
    with dtlab.world() as w, Checkpointer(folder) as checkpoints:
        torch.manual_seed(1)
        model: nn.Module = nn.ModuleDict({"module": nn.Linear(3, 2), "head": nn.Linear(2, 1)})
        model.forward = lambda x: model["head"](model["module"](x))
        checkpoints.save({"model": data_parallel(model, w) if wrap else model}, 1, samples=0)
        checkpoints.wait()
        export_model(data_parallel(model, w) if wrap else model, folder / "model.safetensors")
        return sorted(model.state_dict())


def load_other_way(folder: Path, wrap: bool) -> float:
    with dtlab.world() as w, Checkpointer(folder) as checkpoints:
        model: nn.Module = nn.ModuleDict({"module": nn.Linear(3, 2), "head": nn.Linear(2, 1)})
        target = data_parallel(model, w) if wrap else model
        checkpoints.load({"model": target})
        total = sum(float(p.double().sum()) for p in model.parameters())
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        import_model(target, folder / "model.safetensors")
        assert total == sum(float(p.double().sum()) for p in model.parameters())
        return total


def test_keys_carry_no_wrapper_prefix_and_a_child_named_module_keeps_its_name(tmp_path):
    from safetensors import safe_open

    totals = []
    for name, wrapped in (("wrapped", True), ("plain", False)):
        keys = launch(save_wrapped, 2, tmp_path / name, wrapped)[0]
        path = next((tmp_path / name).glob("save-*")) / "tensors.safetensors"
        with safe_open(path, framework="pt") as file:
            assert sorted(file.keys()) == [f"model/{key}" for key in keys]
        totals += launch(load_other_way, 2, tmp_path / name, not wrapped)
        totals += launch(load_other_way, 1, tmp_path / name, False)
    assert len(set(totals)) == 1


def shard_and_save(folder: Path) -> dict[str, Any]:
    with dtlab.world() as w, Checkpointer(folder) as checkpoints:
        model, optimizer, step = sharded_model(w)
        for _ in range(3):
            step()
        checkpoints.save({"model": model, "optimizer": optimizer}, 3, samples=3)
        loss = step()  # goes on while the checkpoint is written
        checkpoints.wait()
        return {"loss": loss}


def sharded_model(w: Any) -> Any:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    x, y = torch.randn(12, 5), torch.randn(12, 3)
    if w.size > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (w.size,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> float:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return model, optimizer, step


def load_sharded_and_step(folder: Path) -> dict[str, Any]:
    with dtlab.world() as w, Checkpointer(folder) as checkpoints:
        model, optimizer, step = sharded_model(w)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        info = checkpoints.load({"model": model, "optimizer": optimizer})
        return {"loss": step(), "saved_by": info.world_size}


class Planted:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


def test_a_sharded_checkpoint_of_two_ranks_loads_on_one_three_and_four(tmp_path):
    saved = launch(shard_and_save, 2, tmp_path)
    assert len(list(tmp_path.glob("save-*/sharded/*.safetensors"))) == 2
    for sharded in tmp_path.glob("save-*/sharded"):  # where torch's default storage unpickles
        (sharded / ".metadata").write_bytes(pickle.dumps(Planted(tmp_path / "executed")))
    for size in (1, 2, 3, 4):  # the last layer has 3 rows: rank 3 of 4 holds none of them
        for found in launch(load_sharded_and_step, size, tmp_path):
            assert found["saved_by"] == 2
            assert found["loss"] == pytest.approx(saved[0]["loss"], abs=1e-6)
    assert not (tmp_path / "executed").exists()


def load_damaged_shards(folder: Path) -> list[str]:
    with dtlab.world() as w, Checkpointer(folder) as checkpoints:
        model, optimizer, _ = sharded_model(w)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DtlabWarning)
            assert checkpoints.load({"model": model, "optimizer": optimizer}) is None
        return checkpoints.lines


def test_a_damaged_or_missing_shard_is_passed_over_by_every_rank(tmp_path):
    launch(shard_and_save, 2, tmp_path)
    shard = sorted(tmp_path.glob("save-*/sharded/*.safetensors"))[1]
    shard.write_bytes(pickle.dumps(Planted(tmp_path / "executed")))
    one, two = launch(load_damaged_shards, 2, tmp_path)
    assert one == two
    assert "passed over: " in one[0]
    assert shard.name in one[0]
    shard.unlink()
    assert f"{shard.name} is missing" in launch(load_damaged_shards, 3, tmp_path)[0][0]
    assert not (tmp_path / "executed").exists()


def settle_and_compare() -> dict[str, Any]:
    with dtlab.world(seed=1) as w:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        wrapped = data_parallel(model, w)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        generators = torch.get_rng_state()
        wrapped.eval()
        settle_buckets(wrapped, lambda m: m(torch.randn(6, 4)).sum())
        return {
            "state": equal(before, model.state_dict()),
            "generators": torch.equal(generators, torch.get_rng_state()),
            "gradients": [p.grad for p in model.parameters()],
            "training": wrapped.training,
        }


def test_settling_the_buckets_leaves_model_and_generators_as_they_were():
    for found in launch(settle_and_compare, 2):
        assert found == {"state": True, "generators": True, "gradients": [None] * 6, "training": False}


def save_for_ever(folder: Path) -> None:
    with dtlab.world(), Checkpointer(folder, keep=2) as checkpoints:
        info = checkpoints.latest()
        for step in range(info.step + 1 if info else 1, 10_000):
            checkpoints.save({"value": {"x": torch.full((4_000_000,), float(step))}}, step, samples=step)


def test_kills_at_any_moment_of_a_save_leave_a_whole_checkpoint(tmp_path):
    """The whole job dies again and again; the last two kills surely cut a save."""
    last, cut, draw = 0, 0, random.Random(4)
    for attempt in range(3):
        job = subprocess.Popen([sys.executable, __file__, str(tmp_path)], start_new_session=True)
        deadline = time.monotonic() + 60
        while newest_step(tmp_path) <= last or not list(tmp_path.glob(".save-*")):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        while attempt > 0 and not stopped_while_it_writes(job, tmp_path):
            time.sleep(draw.uniform(0, 0.02))
            assert time.monotonic() < deadline
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        cut += len(list(tmp_path.glob(".save-*.writing")))
        with warnings.catch_warnings(), Checkpointer(tmp_path) as checkpoints:
            warnings.simplefilter("ignore", DtlabWarning)
            value: dict[str, Any] = {}
            info = checkpoints.load({"value": value})
        assert value["x"].eq(info.step).all()
        assert info.step > last
        assert not any("passed over" in line for line in checkpoints.lines)
        assert not list(tmp_path.glob(".save-*"))
        last = info.step
    assert cut >= 2


def stopped_while_it_writes(job: subprocess.Popen, folder: Path) -> bool:
    """Stop the job; unless it is in the middle of a save, let it go on."""
    os.killpg(job.pid, signal.SIGSTOP)
    os.waitpid(job.pid, os.WUNTRACED)  # until it stands still
    if list(folder.glob(".save-*.writing")):
        return True
    os.killpg(job.pid, signal.SIGCONT)
    return False


def newest_step(folder: Path) -> int:
    """Also over the steps of an earlier job: it goes on counting where that one stopped."""
    return max((int(path.name[-10:]) for path in folder.glob("save-*")), default=0)


if __name__ == "__main__":
    save_for_ever(Path(sys.argv[1]))
