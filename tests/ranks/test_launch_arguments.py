"""What launch says about wrong arguments: one line that names the field, the value and the way out."""

import socket
import threading

import numpy as np
import pytest
import torch

import dtlab
from dtlab.errors import UserError


def nothing():
    return 0


async def coroutine():
    return 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nproc": 0}, ("nproc", "0", "1 or more")),
        ({"nproc": True}, ("nproc", "True")),
        ({"nproc": 2.0}, ("nproc", "2.0")),
        ({"nnodes": 0}, ("nnodes", "0")),
        ({"timeout": -1}, ("timeout", "-1")),
        ({"timeout": float("nan")}, ("timeout", "nan", "leave it out")),
        ({"timeout": float("inf")}, ("timeout", "inf", "leave it out")),
        ({"nproc": 10**6}, ("nproc", "1000000", "ulimit -n")),
        ({"timeout": "10"}, ("timeout", "'10'")),
        ({"port": 70000}, ("port", "70000")),
        ({"max_restarts": -1}, ("max_restarts", "-1")),
        ({"seed": "a"}, ("seed", "'a'")),
        ({"start_method": "thread"}, ("start_method", "'thread'", "forkserver, spawn, fork")),
        ({"env": {"RANK": "1"}}, ("env", "RANK", "leave it out")),
        ({"env": {"A": 1}}, ("env", "'A'", "string")),
        ({"fn": 3}, ("fn", "3")),
        ({"fn": coroutine}, ("fn", "coroutine", "asyncio.run")),
    ],
)
def test_a_wrong_argument_is_named(arguments, words):
    call = {"fn": nothing, "nproc": 2, **arguments}
    with pytest.raises(UserError) as caught:
        dtlab.launch(**call)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_ranks_that_memory_has_no_room_for_are_refused_with_the_number_that_fits(monkeypatch):
    monkeypatch.setattr("dtlab.ranks.plan.available_bytes", lambda: 3 * 10 * 2**20)
    with pytest.raises(UserError, match=r"nproc: 4 ranks need 40 MiB .* enough for 3 at most"):
        dtlab.launch(nothing, 2, nnodes=2)


def two(first, second=0):
    return first + second


@pytest.mark.parametrize(
    ("args", "kwargs", "why"), [((), {}, "first"), ((1, 2, 3), {}, "too many"), ((1,), {"third": 3}, "third")]
)
def test_arguments_that_the_function_does_not_take_are_refused_before_any_rank_starts(args, kwargs, why):
    with pytest.raises(UserError, match=rf"^fn: two\(first, second=0\) does not take .*{why}"):
        dtlab.launch(two, 2, *args, **kwargs, max_restarts=3)
    assert dtlab.launch(two, 2, 1, second=2) == [3, 3]


def test_a_whole_number_of_numpy_is_one():
    assert dtlab.launch(nothing, np.int64(2)) == [0, 0]


def test_a_port_in_use_is_named_and_free_again_afterwards():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port: {port} cannot be used"):
            dtlab.launch(nothing, 2, port=port)
    for _ in range(3):
        assert dtlab.launch(nothing, 2, port=port) == [0, 0]


def test_what_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def uses_lock():
        return lock

    with pytest.raises(
        UserError, match="uses_lock cannot be sent to the ranks: the variable lock that uses_lock"
    ):
        dtlab.launch(uses_lock, 2)
    with pytest.raises(UserError, match="argument 0"):
        dtlab.launch(nothing, 2, threading.Lock())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"log_dir: .*file/logs cannot be written"):
        dtlab.launch(nothing, 2, log_dir=tmp_path / "file" / "logs")


def test_fork_after_cuda_is_refused_with_the_two_ways_out(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UserError) as caught:
        dtlab.launch(nothing, 2, start_method="fork")
    for word in ("CUDA", "is_initialized() is True", "restart the kernel", "spawn"):
        assert word in str(caught.value)
    assert dtlab.launch(nothing, 2) == [0, 0]


def test_windows_is_sent_to_wsl(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(UserError, match="WSL"):
        dtlab.launch(nothing, 2)
