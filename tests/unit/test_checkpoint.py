"""One process and its checkpoints: damage is passed over, nothing is executed, a full disk loses nothing."""

import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import warnings
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dtlab.errors import DtlabWarning, UserError
from dtlab.train import checkpoint_store
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.checkpoint_read import read_part
from dtlab.train.generators import Generators
from dtlab.train.safetensors_io import export_model, import_model

pytestmark = pytest.mark.filterwarnings("ignore::dtlab.errors.DtlabWarning")


def save(checkpoints: Checkpointer, step: int, size: int = 1000) -> None:
    checkpoints.save({"value": {"x": torch.full((size,), float(step))}}, step, samples=10 * step)


def save_and_wait(checkpoints: Checkpointer, step: int, size: int = 1000) -> None:
    save(checkpoints, step, size)
    checkpoints.wait()


def value_of(folder: Path) -> tuple[float | None, list[str]]:
    """What a new job finds in the folder, and what it is told."""
    with Checkpointer(folder) as checkpoints:
        value: dict = {}
        info = checkpoints.load({"value": value})
        return (None if info is None else float(value["x"].mean())), checkpoints.lines


def two_saves(folder: Path) -> Path:
    with Checkpointer(folder) as checkpoints:
        save(checkpoints, 5)
        save(checkpoints, 10)
    return sorted(folder.glob("save-*"))[-1]


class Planted:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


FILES = ("state.json", "tensors.safetensors")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["pickle", "torch.save", "with the right checksum"])
def test_a_pickle_planted_in_a_file_is_refused_and_not_executed(tmp_path, name, how):
    newest, marker = two_saves(tmp_path / "run"), tmp_path / "executed"
    if how == "torch.save":
        torch.save(Planted(marker), newest / name)
    else:
        (newest / name).write_bytes(pickle.dumps(Planted(marker)))
    if how == "with the right checksum" and name != "state.json":
        outer = json.loads((newest / "state.json").read_text())
        data = (newest / name).read_bytes()
        outer["checkpoint"]["files"][name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
        text = json.dumps(outer["checkpoint"], separators=(",", ":"))
        outer["crc32"] = zlib.crc32(text.encode())
        (newest / "state.json").write_text(json.dumps(outer))
    value, lines = value_of(tmp_path / "run")
    assert value == 5
    assert lines[0].startswith(f"{newest.name} passed over: {name}")
    with pytest.raises(UserError, match=name):
        read_part(newest, "value")
    assert not marker.exists()
    pickle.loads(pickle.dumps(Planted(marker)))  # it would have been executed
    assert marker.exists()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["removed", "empty", "half", "a byte short", "a changed byte"])
def test_a_damaged_file_is_named_and_the_previous_checkpoint_taken(tmp_path, name, how):
    newest = two_saves(tmp_path)
    path = newest / name
    data = bytearray(path.read_bytes())
    if how == "removed":
        path.unlink()
    elif how == "a changed byte":
        data[len(data) * 2 // 3] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[: {"empty": 0, "half": len(data) // 2, "a byte short": len(data) - 2}[how]])
    value, lines = value_of(tmp_path)
    assert value == 5
    assert lines[0].startswith(f"{newest.name} passed over: ")
    assert name in lines[0]
    assert len(lines) == 1


def test_with_every_checkpoint_damaged_there_is_none(tmp_path):
    two_saves(tmp_path)
    for path in tmp_path.glob("save-*/state.json"):
        path.unlink()
    value, lines = value_of(tmp_path)
    assert value is None
    assert len(lines) == 2


def test_an_empty_or_foreign_folder_has_no_checkpoint(tmp_path):
    (tmp_path / "save-notes").mkdir()
    (tmp_path / "readme.txt").write_text("mine")
    assert value_of(tmp_path) == (None, [])
    assert (tmp_path / "readme.txt").exists()


def test_the_newest_are_kept_and_damaged_ones_do_not_count(tmp_path):
    with Checkpointer(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            save(checkpoints, step)
        checkpoints.wait()
        assert [p.name[-2:] for p in sorted(tmp_path.glob("save-*"))] == ["02", "03"]
        (tmp_path / "save-000003-step-0000000003" / "tensors.safetensors").unlink()
        save(checkpoints, 4)
        checkpoints.wait()
        assert [p.name[-2:] for p in sorted(tmp_path.glob("save-*"))] == ["02", "03", "04"]


def test_the_last_save_is_the_newest_also_after_going_back_to_an_earlier_step(tmp_path):
    with Checkpointer(tmp_path) as checkpoints:
        save(checkpoints, 5)
        save(checkpoints, 10)
        checkpoints.load({"value": {}})
        save(checkpoints, 7)
        save(checkpoints, 7)  # the same step again
        info = checkpoints.latest()
    assert (info.step, info.number, info.samples) == (7, 4, 70)


def test_what_killed_jobs_left_is_named_and_removed(tmp_path):
    two_saves(tmp_path)
    left = tmp_path / ".save-000003-step-0000000015.writing"
    left.mkdir()
    (left / "tensors.safetensors").write_bytes(b"half")
    value, lines = value_of(tmp_path)
    assert value == 10
    assert "save-000003-step-0000000015 was never finished" in lines[0]
    assert not left.exists()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_training_on_changes_nothing_in_a_save(tmp_path, asynchronous):
    torch.manual_seed(0)
    model = nn.Linear(300, 300)
    before = model.weight.detach().clone()
    with Checkpointer(tmp_path, asynchronous=asynchronous) as checkpoints:
        for step in (1, 2):  # the second reuses the first one's buffers
            checkpoints.save({"model": model}, step, samples=0)
            with torch.no_grad():
                model.weight.add_(1)
        checkpoints.wait()
        assert checkpoints.blocked_seconds > 0
    first, second = (read_part(path, "model")["weight"] for path in sorted(tmp_path.glob("save-*")))
    assert torch.equal(first, before)
    assert torch.equal(second, before + 1)


def test_tied_weights_are_saved_and_come_back(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    before = model["a"].weight.detach().clone()
    for asynchronous in (True, False):
        with Checkpointer(tmp_path, asynchronous=asynchronous) as checkpoints:
            checkpoints.save({"model": model}, 1, samples=0)
            with torch.no_grad():
                model["a"].weight.zero_()
            checkpoints.load({"model": model})
        assert torch.equal(model["b"].weight, before)
    export_model(model, tmp_path / "model.safetensors")
    with torch.no_grad():
        model["a"].weight.zero_()
    import_model(model, tmp_path / "model.safetensors")
    assert torch.equal(model["b"].weight, before)


NEXT_DRAWS = """
import random, sys, numpy, torch
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.generators import Generators
with Checkpointer(sys.argv[1]) as checkpoints:
    config = {}
    checkpoints.load({"config": config, "generators": Generators()})
    print(config, random.random(), numpy.random.rand(), torch.rand(1).item())
"""


def test_a_new_process_draws_the_numbers_that_the_old_one_would_have_drawn(tmp_path):
    with Checkpointer(tmp_path) as checkpoints:
        config = {"lr": 0.1, "betas": (0.9, 0.95)}
        checkpoints.save({"config": config, "generators": Generators()}, 1, samples=0)
    ours = f"{config} {random.random()} {np.random.rand()} {torch.rand(1).item()}"
    done = subprocess.run(
        [sys.executable, "-c", NEXT_DRAWS, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == ours, done.stderr


HOLD = """
import sys
from dtlab.train.checkpoint import Checkpointer
held = Checkpointer(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_second_job_on_the_folder_is_refused_until_the_first_one_is_gone(tmp_path, monkeypatch):
    two_saves(tmp_path)
    job = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout.readline() == "ready\n"
        monkeypatch.setattr(checkpoint_store, "_LOCK_PATIENCE", 0.2)
        with pytest.raises(UserError, match=rf"another job \(process {job.pid} on .*\) writes to it"):
            Checkpointer(tmp_path)
        monkeypatch.undo()
        job.send_signal(signal.SIGKILL)  # and leaves no lock behind
        assert value_of(tmp_path)[0] == 10
    finally:
        job.kill()
        job.communicate()


@contextmanager
def full_disk(folder: Path, kind: str):
    """Room for small files only."""
    if kind == "tmpfs":
        folder.mkdir()
        options = ["-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
        if not shutil.which("mount") or subprocess.run(["mount", *options], capture_output=True).returncode:
            pytest.skip("needs the right to mount")
        try:
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", ["tmpfs", "file size limit"])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path, kind, asynchronous):
    folder = tmp_path / "disk"
    with full_disk(folder, kind), Checkpointer(folder, asynchronous=asynchronous) as checkpoints:
        save(checkpoints, 5)
        with pytest.raises(UserError) as caught:
            save_and_wait(checkpoints, 10, size=100_000)
        message = str(caught.value)
        assert "the checkpoint of step 10 failed, the last good one is step 5" in message
        assert "free space" in message
        assert "\n" not in message
        assert not list(folder.glob(".save-*"))
        assert checkpoints.latest().step == 5
        save(checkpoints, 15)
        assert checkpoints.latest().step == 15


def test_saves_that_fail_warn_each_time_and_the_status_tells_the_lag(tmp_path):
    with (
        full_disk(tmp_path, "file size limit"),
        warnings.catch_warnings(record=True) as seen,
        Checkpointer(tmp_path, on_failure="warn") as checkpoints,
    ):
        warnings.simplefilter("always")
        for step, size in ((18, 10), (30, 100_000), (50, 100_000)):
            save(checkpoints, step, size)
            checkpoints.wait()
        status = checkpoints.status(51)
    told = [str(warning.message) for warning in seen if warning.category is DtlabWarning]
    assert len(told) == 2
    assert all("the last good one is step 18" in line for line in told)
    assert (status.last_good_step, status.steps_since, status.failures) == (18, 33, 2)
    assert str(status).startswith(
        "last good checkpoint: step 18, 33 steps ago; the checkpoint of step 50 failed"
    )


@contextmanager
def without_rights(folder: Path):
    """As a user who may look into the folder and not write; root may write everywhere."""
    folder.chmod(0o555)
    was_root = os.geteuid() == 0
    if was_root:
        for parent in folder.parents[:3]:
            parent.chmod(parent.stat().st_mode | 0o055)
        os.seteuid(65534)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)
        folder.chmod(0o755)


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match="name a folder, not a file"):
            Checkpointer(place)
    closed = tmp_path / "closed"
    closed.mkdir()
    for place in (closed, closed / "run"):
        with without_rights(closed), pytest.raises(UserError, match="name a folder that this user can write"):
            Checkpointer(place)


def test_rights_that_go_away_lose_no_checkpoint(tmp_path):
    folder = tmp_path / "run"
    with Checkpointer(folder) as checkpoints:
        save(checkpoints, 5)
        checkpoints.wait()
        with without_rights(folder), pytest.raises(UserError) as caught:
            save_and_wait(checkpoints, 10)
        assert "the last good one is step 5" in str(caught.value)
        assert "name a folder that this user can write" in str(caught.value)
        assert checkpoints.latest().step == 5


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"weight": (1, 2)}, "bias is missing"),
        ({"weight": (1, 2), "bias": (1,), "more": (1,)}, "more is not in the model"),
        ({"weight": (2, 1), "bias": (1,)}, r"weight has shape \[2, 1\], the model's has \[1, 2\]"),
    ],
)
def test_weights_of_another_model_are_refused_and_change_nothing(tmp_path, keys, words):
    from safetensors.torch import save_file

    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    path = tmp_path / "model.safetensors"
    save_file({name: torch.zeros(shape) for name, shape in keys.items()}, path)
    with pytest.raises(UserError, match=words):
        import_model(model, path)
    path.write_bytes(pickle.dumps(model.state_dict()))
    with pytest.raises(UserError, match="not a readable safetensors file"):
        import_model(model, path)
    assert torch.equal(model.weight, before)


def test_weights_saved_from_a_wrapped_model_elsewhere_are_read(tmp_path):
    from safetensors.torch import save_file

    model = nn.Linear(2, 1)
    path = tmp_path / "model.safetensors"
    save_file({"module._orig_mod.weight": torch.ones(1, 2), "module._orig_mod.bias": torch.ones(1)}, path)
    import_model(model, path)
    assert float((model.weight.sum() + model.bias).detach()) == 3


def test_loading_into_another_model_names_the_part_and_the_keys(tmp_path):
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save({"model": nn.Linear(2, 1)}, 1, samples=0)
        with pytest.raises(UserError, match=r"part 'model' does not fit: .*0.weight"):
            checkpoints.load({"model": nn.Sequential(nn.Linear(2, 1))})


@pytest.mark.parametrize(
    "change",
    [
        {"parts": []}, {"ranks": None}, {"ranks": [3]}, {"sharded": [1]},
        {"step": float("nan")}, {"step": None}, {"files": {"tensors.safetensors": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_a_description_with_odd_content_is_passed_over_for_the_previous_checkpoint(tmp_path, change):
    path = two_saves(tmp_path) / "state.json"
    content = {**json.loads(path.read_text())["checkpoint"], **change}
    text = json.dumps(content, separators=(",", ":"))
    path.write_text(f'{{"format": 1, "crc32": {zlib.crc32(text.encode())}, "checkpoint": {text}}}')
    value, lines = value_of(tmp_path)
    assert value == 5.0
    assert any("passed over" in line for line in lines)


def test_a_package_with_odd_content_is_refused_in_one_line(tmp_path):
    from dtlab.train.config import TrainConfig
    from dtlab.train.package import build_model, load_package, save_package

    config = TrainConfig.from_dict({"model": {"dim": 8, "num_layers": 1, "num_heads": 2, "sequence": 8}})
    save_package(tmp_path / "model", build_model(config, None), None, config, {})
    whole = json.loads((tmp_path / "model" / "model.json").read_text())
    odd = [[], 3, None, {}, {name: part for name, part in whole.items() if name != "about"}]
    changes = [
        {"format": float("nan")}, {"config": None}, {"config": []}, {"features": 5}, {"features": "[]"},
        {"config": {"model": {"dim": 10**30}}}, {"config": {"model": {"hidden": 7}}},
        {"config": {"run": {"dtype": "nothing"}}},
    ]  # fmt: skip
    odd += [{**whole, **change} for change in changes]
    for content in odd:
        (tmp_path / "model" / "model.json").write_text(json.dumps(content))
        with pytest.raises(UserError) as caught:
            load_package(tmp_path / "model")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"keep": 1.5}, "keep = 1.5"),
        ({"keep": "2"}, "keep = '2'"),
        ({"timeout": "x"}, "timeout = 'x'"),
        ({"enter_seconds": float("nan")}, "enter_seconds = nan"),
        ({"folder": ""}, "folder = ''"),
        ({"folder": None}, "folder = None"),
        ({"folder": "a\0b"}, "folder = "),
    ],
)
def test_checkpointer_of_something_else_names_the_argument(tmp_path, options, named):
    folder = options.pop("folder", tmp_path)
    with pytest.raises(UserError, match=named):
        Checkpointer(folder, **options)


@pytest.mark.parametrize(
    ("parts", "step", "samples", "named"),
    [
        ({}, -1, 1, "step = -1"),  # a name that nobody would find again
        ({}, 1.5, 1, "step = 1.5"),
        ({}, None, 1, "step = None"),
        ({}, 1, None, "samples = None"),
        ({}, 1, -1, "samples = -1"),
        (None, 1, 1, "parts = a NoneType"),
        ({1: {}}, 1, 1, "1 is a int"),
    ],
)
def test_save_that_could_not_be_found_again_is_refused(tmp_path, parts, step, samples, named):
    with Checkpointer(tmp_path, asynchronous=False) as checkpoints:
        with pytest.raises(UserError, match=named):
            checkpoints.save(parts, step, samples=samples)
        assert checkpoints.latest() is None
    assert not list(tmp_path.glob("*save*"))


def test_save_to_a_closed_checkpointer_would_write_without_the_lock(tmp_path):
    checkpoints = Checkpointer(tmp_path, asynchronous=False)
    checkpoints.close()
    with pytest.raises(UserError, match="was closed"):
        save(checkpoints, 1)


def test_state_of_another_optimizer_is_refused_and_changes_nothing(tmp_path):
    with Checkpointer(tmp_path, asynchronous=False) as checkpoints:
        checkpoints.save({"optimizer": torch.optim.AdamW(nn.Linear(2, 1).parameters())}, 1, samples=1)
        other = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.5, momentum=0.9)
        with pytest.raises(UserError, match="saved by another optimizer, without dampening, momentum"):
            checkpoints.load({"optimizer": other})
    assert (other.param_groups[0]["lr"], other.param_groups[0]["momentum"]) == (0.5, 0.9)


def test_sparse_tensor_is_refused_with_its_path(tmp_path):
    with (
        Checkpointer(tmp_path, asynchronous=False) as checkpoints,
        pytest.raises(UserError, match=r"x/v is a sparse"),
    ):
        checkpoints.save({"x": {"v": torch.eye(3).to_sparse()}}, 1, samples=1)


def test_checkpoint_that_went_away_is_named(tmp_path):
    with Checkpointer(tmp_path, asynchronous=False) as checkpoints:
        save(checkpoints, 1)
        info = checkpoints.latest()
        shutil.rmtree(info.path)
        with pytest.raises(UserError, match=rf"{info.path.name}.*state\.json is missing; name another"):
            checkpoints.load({"x": {}}, info)
