"""A collective that cannot end names the late rank and its operation, while the late rank stays alive."""

import subprocess
import sys

import pytest
from world_scripts import by_hand, clean_environ, free_port, run_ranks, torchrun, write

LATE = """
    import sys, time
    import dtlab, torch, torch.distributed as dist
    torch.manual_seed(0)
    with dtlab.world(timeout=TIMEOUT, join_timeout=60) as w:
        SETUP
        for step in range(3):
            if w.rank == 1 and step == 2:
                time.sleep(60)  # stays alive: a rank that exits would be noticed at once
            WORK
"""
WORK = {
    "all_reduce": "dist.all_reduce(torch.ones(3))",
    "backward": "model(torch.ones(2, 4)).sum().backward()",
    "recv": "dist.recv(torch.ones(1), 1) if w.rank == 0 else dist.send(torch.ones(1), 0)",
}


def late_script(folder, kind):
    # Constructing DDP imports a lot, on a busy machine not equally fast on both ranks.
    ddp = "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))"
    setup, timeout = (ddp, "5") if kind == "backward" else ("pass", "2")
    return write(folder, LATE.replace("WORK", WORK[kind]).replace("SETUP", setup).replace("TIMEOUT", timeout))


def check_story(text, operation):
    (line,) = [line for line in text.splitlines() if "LateRankError: " in line][:1]
    assert "rank 0 of 2 ran out of time in" in line
    assert "rank 1 of 2 is late: last operation" in line
    assert "time.sleep(60)" in line
    assert f"rank 0 waits in {operation}" in line
    return line


def test_late_rank_is_named_under_torchrun_inside_backward(tmp_path):
    done = torchrun(late_script(tmp_path, "backward"))
    assert done.code != 0
    line = check_story(done.err, "all_reduce #")
    ahead = int(line.split("rank 0 waits in all_reduce #")[1].split(";")[0])
    behind = int(line.split("last operation ")[1].split("#")[1].split(",")[0])
    assert behind == ahead - 1


@pytest.mark.parametrize(("kind", "operation"), [("all_reduce", "all_reduce #"), ("recv", "recv")])
def test_late_rank_is_named_with_variables_set_by_hand(tmp_path, kind, operation):
    port = free_port()
    script = late_script(tmp_path, kind)
    (zero,) = run_ranks(script, [by_hand(rank, 2, port) for rank in (0, 1)], wait_for=1)
    assert zero.code != 0
    check_story(zero.err, operation)


def test_rank_that_makes_one_call_more_is_named_by_the_one_that_left(tmp_path):
    script = write(
        tmp_path,
        """
        import dtlab
        with dtlab.world() as w:
            w.barrier()
            if w.rank == 1:
                w.barrier()
        """,
    )
    port = free_port()
    zero, one = run_ranks(script, [by_hand(rank, 2, port) for rank in (0, 1)])
    assert zero.code != 0
    assert one.code != 0
    assert "rank 1 waits in barrier #2" in zero.err
    assert "lost a peer in barrier #2" in one.err


def test_answering_thread_that_wakes_late_does_not_abort_the_process(tmp_path):
    """torch ends the process when a thread returns from its store while the interpreter goes."""
    script = write(
        tmp_path,
        """
        import threading, dtlab
        from dtlab.ranks import recorder

        now = recorder._request
        def late(*words):
            threading.Timer(2.0, now, words).start()  # a machine that stands still

        with dtlab.world() as w:
            recorder._request = late
        print("left")
        """,
    )
    environ = clean_environ(**by_hand(0, 1, free_port()))
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
