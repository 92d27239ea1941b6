"""No process outlives its launch: after Ctrl-C, after a killed launcher, and of what ranks started."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch
import torch.distributed as dist

import dtlab


def alive(pids):
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            pass
    return found


def wait_until_gone(pids, seconds=30):
    until = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.02)
    return alive(pids)


# Four ranks that reduce for ever; each also has a loader worker and a child that left its process group.
_LOOPING = textwrap.dedent(
    """
    import os, subprocess, sys
    import dtlab

    def loop():
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                while True:
                    yield 1
        loader = iter(torch.utils.data.DataLoader(Endless(), num_workers=1))
        next(loader)
        pids = [os.getpid(), loader._workers[0].pid]
        if STRAY:
            pids.append(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
        dist.barrier()
        print("pids", *pids, flush=True)
        while True:
            dist.all_reduce(torch.ones(1))

    try:
        dtlab.launch(loop, 4, port=int(sys.argv[1]), start_method=sys.argv[2])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        assert list(dtlab.launch(os.getpid, 2, port=int(sys.argv[1])))
        print("again", flush=True)
    """
)


def start_looping(method, port, *, stray):
    process = subprocess.Popen(
        [sys.executable, "-c", f"STRAY = {stray}\n{_LOOPING}", str(port), method],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = []
    for line in process.stdout:
        if "] pids " in line:
            pids += [int(word) for word in line.split("pids ")[1].split()]
            if len(pids) == 4 * (3 if stray else 2):
                break
    everybody = {p.pid for p in psutil.Process(process.pid).children(recursive=True)} | set(pids)
    assert len(everybody) >= len(pids) >= 8
    return process, everybody


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_interrupting_the_parent_ends_ranks_workers_and_strays_and_frees_the_port():
    process, pids = start_looping("forkserver", free_port(), stray=True)
    server = {p.pid for p in psutil.Process(process.pid).children()}
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(20) == 0
    assert "interrupted" in rest
    assert "again" in rest
    assert wait_until_gone(pids - server) == []
    assert wait_until_gone(server) == []


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_killing_the_parent_leaves_no_process_also_none_in_a_session_of_its_own(method):
    process, pids = start_looping(method, free_port(), stray=True)
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until_gone(pids) == []


def leaves_children():
    """Returns while a loader worker and a daemon still run."""
    loader = iter(torch.utils.data.DataLoader(range(100), num_workers=1))
    next(loader)
    daemon = subprocess.Popen(["sleep", "1000"])
    return loader._workers[0].pid, daemon.pid, os.getpid()


def test_what_a_rank_left_running_ends_with_it():
    pids = [pid for result in dtlab.launch(leaves_children, 2) for pid in result]
    assert len(pids) == 6
    assert wait_until_gone(pids) == []


def add_up():
    dist.init_process_group("gloo")
    x = torch.ones(1000, 10) @ torch.ones(10, 10)  # a parallel region, which must not hang after a fork
    value = x.sum() + dist.get_rank()
    dist.all_reduce(value)
    return value.item(), os.getppid()


def test_spawn_and_fork_give_the_same_result():
    torch.ones(2000, 300) @ torch.ones(300, 300)  # this process's own thread pool is in use
    for method in ("spawn", "fork"):
        results = dtlab.launch(add_up, 2, start_method=method)
        assert [value for value, _ in results] == [200001.0, 200001.0]
        assert {parent for _, parent in results} == {os.getpid()}


def has_imported(name, first):
    found = name in sys.modules
    if first:
        __import__(name)
    return found


def test_what_a_rank_had_to_import_the_server_has_for_the_ranks_of_the_next_launch():
    name = "torch.distributed.fsdp"
    dtlab.launch(has_imported, 1, name, True, timeout=90, echo=False)
    assert list(dtlab.launch(has_imported, 2, name, False, timeout=90, echo=False)) == [True, True]


def test_a_dead_server_is_replaced():
    first = dtlab.launch(os.getppid, 2)[0]
    os.kill(first, signal.SIGKILL)
    assert wait_until_gone([first]) == []
    second = dtlab.launch(os.getppid, 2)[0]
    assert second != first


def test_a_server_that_cannot_start_says_why():
    begin = time.monotonic()
    with pytest.raises(
        RuntimeError, match=r"the process that starts the ranks ended: .*No module named 'encodings'"
    ):
        dtlab.launch(os.getppid, 2, env={"PYTHONHOME": "/nonexistent"})
    assert time.monotonic() - begin < 20
    assert len(dtlab.launch(os.getppid, 2)) == 2


def test_a_forked_copy_that_ends_leaves_the_logs_of_its_parent(tmp_path):
    code = """
        import os, sys, dtlab
        def nothing():
            return 0
        if __name__ == "__main__":
            dtlab.launch(nothing, 1, start_method="spawn")
            pid = os.fork()
            if pid == 0:
                sys.exit(0)
            os.waitpid(pid, 0)
            print(dtlab.launch(nothing, 1, start_method="spawn"))
    """
    script = tmp_path / "forks.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[0]\n", done.stderr


def nested():
    return list(dtlab.launch(os.getppid, 2, echo=False)), os.getpid()


def test_a_rank_can_launch_ranks_of_its_own():
    for inner, rank in dtlab.launch(nested, 1):
        assert len(inner) == 2
        assert wait_until_gone([*inner, rank]) == []


def test_logs_that_a_killed_process_left_are_removed_by_the_next_one_and_those_of_a_living_one_stay(tmp_path):
    code = (
        "import sys, time; from dtlab.ranks.log_folder import log_folder\n"
        "with log_folder(None) as folder:\n    print(folder, flush=True)\n    sys.stdin.read()"
    )
    processes, folders = [], []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        folders.append(os.path.dirname(process.stdout.readline().strip()))
    foreign = tmp_path / "dtlab-of-somebody"
    foreign.mkdir()
    processes[0].kill()
    processes[0].wait()
    assert os.path.isdir(folders[0])
    last = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, input="",
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert not os.path.isdir(folders[0])
    assert os.path.isdir(folders[1])
    assert foreign.is_dir()
    assert not os.path.isdir(os.path.dirname(last.stdout.strip()))
    processes[1].communicate("")
    assert processes[1].returncode == 0
    assert not os.path.isdir(folders[1])
