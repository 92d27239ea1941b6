"""Which rank an error names, what it shows of the user's code, and what happens to the other ranks."""

import ctypes
import os
import pickle
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
import torch.distributed as dist

import dtlab
from dtlab import RankError


def failing(fn, nproc=2, *args, **options):
    """The RankError of a launch, after checking that no rank outlived it."""
    options.setdefault("echo", False)
    begin = time.monotonic()
    with pytest.raises(RankError) as caught:
        dtlab.launch(fn, nproc, *args, **options)
    caught.value.seconds = time.monotonic() - begin
    servers = psutil.Process().children()
    left = [p for server in servers for p in server.children(recursive=True)]
    assert left == []
    return caught.value


def joined_then(rank, act):
    with dtlab.world() as w:
        w.barrier()
        if w.rank == rank:
            act()
        w.barrier()


def raise_value_error():
    raise ValueError("bad lr")


def exit_without_a_word():
    print("about to leave")
    os._exit(3)


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def read_null():
    ctypes.string_at(0)


def leave_with_a_reason():
    sys.exit("no such table")


def leave_politely():
    sys.exit(4)


def test_the_rank_that_raised_leads_and_the_user_sees_their_own_lines():
    error = failing(joined_then, 2, 1, raise_value_error)
    lines = str(error).splitlines()
    assert lines[0] == "rank 1 of 2 failed: ValueError: bad lr"
    assert (error.rank, error.world_size, error.exception_type, error.message) == (
        1,
        2,
        "ValueError",
        "bad lr",
    )
    assert any(re.match(r'--> +\d+ +raise ValueError\("bad lr"\)', line) for line in error.cell_lines)
    assert "in joined_then: act()" in str(error)
    assert "rank 0 lost its peer in barrier #2" in str(error)
    assert "127.0.0.1" not in str(error)
    assert [report.lost_peer for report in error.reports] == [True, False]
    assert "ValueError: bad lr" in error.reports[1].traceback
    assert lines[-1] == "  restarts are off (max_restarts=0)"
    assert error._render_traceback_()[0] == "RankError: rank 1 of 2 failed: ValueError: bad lr"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rank, again.cell_lines) == (str(error), 1, error.cell_lines)


@pytest.mark.parametrize(
    ("act", "first", "also"),
    [
        (exit_without_a_word, "rank 1 of 2 exited with code 3", "about to leave"),
        (kill_myself, "rank 1 of 2 was killed by SIGKILL", "memory"),
        (read_null, "rank 1 of 2 was killed by SIGSEGV", "ctypes.string_at(0)"),
        (leave_politely, "rank 1 of 2 exited with code 4", "sys.exit(4)"),
        (leave_with_a_reason, "rank 1 of 2 exited with code 1: no such table", "leave_with_a_reason"),
    ],
)
def test_a_rank_that_dies_is_named_with_its_code_or_signal(act, first, also):
    error = failing(joined_then, 2, 1, act)
    assert str(error).splitlines()[0] == first
    assert also in str(error)
    assert error.rank == 1
    assert "rank 0 lost its peer" in str(error)


class TakesLongToTell(Exception):
    def __str__(self):
        time.sleep(1)  # the other rank has lost this one by then; asked for several times
        return "bad lr"


def raise_what_takes_long_to_tell():
    raise TakesLongToTell


def test_the_reason_of_a_rank_is_waited_for_though_its_peer_was_the_first_to_tell():
    error = failing(joined_then, 2, 1, raise_what_takes_long_to_tell)
    assert str(error).splitlines()[0] == "rank 1 of 2 failed: TakesLongToTell: bad lr"
    assert "rank 0 lost its peer in barrier #2" in str(error)


def peer_is_held_up(pids):
    with dtlab.world() as w:
        (pids / str(w.rank)).write_text(str(os.getpid()))
        w.barrier()
        if w.rank == 1:
            peer = int((pids / "0").read_text())
            os.kill(peer, signal.SIGSTOP)
            subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -CONT {peer}"], start_new_session=True)
            raise_value_error()
        w.barrier()


def test_a_peer_that_the_machine_holds_up_gets_the_time_to_tell_what_happened_to_it(tmp_path):
    error = failing(peer_is_held_up, 2, tmp_path)
    assert str(error).splitlines()[0] == "rank 1 of 2 failed: ValueError: bad lr"
    assert "rank 0 lost its peer in barrier #2" in str(error)


def peer_sleeps():
    if os.environ["RANK"] == "1":
        raise KeyError("missing")
    time.sleep(1000)


def peer_ignores_signals():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    peer_sleeps()


@pytest.mark.parametrize("fn", [peer_sleeps, peer_ignores_signals])
def test_a_peer_that_never_notices_is_told_and_stopped(fn):
    error = failing(fn)
    assert str(error).splitlines()[0] == "rank 1 of 2 failed: KeyError: 'missing'"
    assert re.search(
        r"rank 0 was stopped at test_launch_errors.py:\d+ in peer_sleeps: time.sleep", str(error)
    )
    assert error.seconds < 30


def all_fail():
    import a_module_that_nobody_has  # noqa: F401


def test_ranks_that_fail_alike_are_told_once_and_an_import_error_is_not_tried_again():
    error = failing(all_fail, 3, max_restarts=3)
    text = str(error)
    assert text.startswith(
        "rank 0 of 3 failed: ModuleNotFoundError: No module named 'a_module_that_nobody_has'"
    )
    assert text.count("No module named") == 1
    assert text.count("failed in the same way") == 2
    assert "0 of 3 restarts used" in text


def own_network_error():
    with dtlab.world() as w:
        if w.rank == 0:
            raise ConnectionResetError("connection reset by peer")  # the user's own, say of a download
        w.barrier()


def test_a_connection_error_of_the_users_own_code_is_not_taken_for_a_lost_peer():
    error = failing(own_network_error)
    assert error.rank == 0
    assert error.exception_type == "ConnectionResetError"


def own_query_times_out():
    raise RuntimeError("database query timed out")


def own_connection_is_refused():
    raise RuntimeError("connection refused")


@pytest.mark.parametrize("act", [own_query_times_out, own_connection_is_refused])
def test_a_runtime_error_of_the_users_own_code_that_reads_like_torchs_names_its_rank(act):
    error = failing(joined_then, 2, 1, act)
    assert error.rank == 1
    assert error.exception_type == "RuntimeError"
    assert [report.lost_peer for report in error.reports] == [True, False]


def cannot_be_sent_back():
    return (x for x in "ab")


def test_a_result_that_cannot_be_pickled_names_its_type():
    error = failing(cannot_be_sent_back)
    assert "rank 0 of 2 failed: TypeError: the result (generator) cannot be sent back" in str(error)


# Seconds until time is up: ranks that share two cores with other tests must have met by then.
TO_MEET = 6.0


def one_sleeps_before_a_collective():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(2))


def one_holds_the_lock():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        re.match(r"(a+)+$", "a" * 60 + "b")
    dist.all_reduce(torch.ones(2))


def test_a_timeout_names_the_late_rank_and_both_operations():
    error = failing(one_sleeps_before_a_collective, timeout=TO_MEET)
    first = str(error).splitlines()[0]
    assert first.startswith("timeout after 6 s: rank 1 of 2 is late: last operation all_reduce #1")
    assert "rank 0 waits in all_reduce #2" in first
    assert (error.rank, error.late, error.exception_type) == (1, (1,), "TimeoutError")
    assert any("-->" in line and "time.sleep(1000)" in line for line in error.cell_lines)
    assert error.seconds < 30


def test_a_rank_that_holds_the_interpreter_lock_is_found_too():
    error = failing(one_holds_the_lock, timeout=TO_MEET)
    assert error.late == (1,)
    assert any("-->" in line and "re.match" in line for line in error.cell_lines)
    assert error.seconds < 30


def own_timeout():
    with dtlab.world(timeout=1.5, join_timeout=60) as w:
        w.barrier()
        if w.rank == 1:
            time.sleep(1000)
        w.barrier()


def test_a_collective_that_gives_up_blames_the_rank_that_did_not_come():
    error = failing(own_timeout)
    first = str(error).splitlines()[0]
    assert first.startswith("rank 1 of 2 is late: last operation barrier #1")
    assert "rank 0 gave up" in first
    assert error.rank == 1


def brings_other_sizes(small):
    with dtlab.world() as w:
        w.barrier()
        dist.all_reduce(torch.ones(3 if w.rank == small else 5))


@pytest.mark.parametrize("small", [0, 1])
def test_an_abort_over_unlike_sizes_says_so_and_shows_the_call(small):
    error = failing(brings_other_sizes, 2, small)
    first, *rest = str(error).splitlines()
    assert first.startswith(
        f"rank {small} of 2 was killed by SIGABRT: the ranks gave tensors of unlike sizes"
    )
    assert any("-->" in line and "dist.all_reduce" in line for line in error.cell_lines)
    assert "enforce fail" not in "".join(rest)  # said already
    assert "enforce fail" in "".join(error.reports[small].last_output)


def test_unlike_sizes_that_pass_for_a_late_rank_are_told_from_lateness():
    # With more than two ranks the small one gets through, and the others wait for the rest of its tensor.
    error = failing(brings_other_sizes, 4, 0, timeout=60)
    assert "the ranks call all_reduce #2 with different sizes" in str(error)
    assert "rank 0: [3]; rank 1: [5]" in str(error)


def early_leaver():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 1:
        dist.barrier()


def early_leaver_of_a_world():
    with dtlab.world() as w:
        w.barrier()
        if w.rank == 1:
            w.barrier()


def works_longer():
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(0.3)
    return dist.get_rank()


def test_a_rank_that_waits_for_one_that_has_returned_is_named_with_its_operation(monkeypatch):
    monkeypatch.setattr("dtlab.ranks.supervise.EARLY_SECONDS", 0.1)
    error = failing(early_leaver)
    first = str(error).splitlines()[0]
    assert first.startswith(
        "rank 1 of 2 failed: it waited in barrier #2 for rank 0, which had already returned"
    )
    assert any("dist.barrier()" in line for line in error.cell_lines)
    # one that only works longer is left in peace
    assert dtlab.launch(works_longer, 2) == [0, 1]


def test_leaving_a_world_while_another_waits_names_both_and_the_operation():
    error = failing(early_leaver_of_a_world)
    first = str(error).splitlines()[0]
    assert first.startswith("rank 0 of 2 failed")
    assert "rank 1 waits in barrier #2" in first
    assert error.seconds < 30


def dies_while_attempts_are_left(folder, failures):
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with dtlab.world() as w:
        w.barrier()
        if w.rank == 1 and attempt < failures:
            if failures == 1:
                os._exit(9)
            raise ValueError("bad lr")
        with open(os.path.join(folder, f"{w.rank}.{attempt}"), "w"):
            return attempt


def test_restarts_are_off_unless_asked_for_and_their_number_is_told(tmp_path, capsys):
    error = failing(dies_while_attempts_are_left, 2, str(tmp_path), 1)
    assert "restarts are off" in str(error)
    done = dtlab.launch(dies_while_attempts_are_left, 2, str(tmp_path), 1, max_restarts=1, echo=False)
    assert list(done) == [1, 1]
    assert done.restarts == 1
    assert "rank 1 of 2 exited with code 9; restart 1 of 1" in capsys.readouterr().out
    error = failing(dies_while_attempts_are_left, 2, str(tmp_path), 99, max_restarts=2)
    assert str(error).splitlines()[0] == "rank 1 of 2 failed: ValueError: bad lr"
    assert "2 of 2 restarts used" in str(error)


def test_failures_leave_the_port_free_and_the_next_launch_works():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for _ in range(3):
        assert failing(joined_then, 2, 1, raise_value_error, port=port).rank == 1
        assert dtlab.launch(os.getpid, 2, port=port, echo=False)


def _at_work_when_time_is_up(path):
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    try:
        time.sleep(60)
    finally:
        time.sleep(0.3)
        path.write_text("cleaned up")


def test_a_rank_at_work_cleans_up_when_time_is_up_though_another_waits_in_a_collective(tmp_path):
    with pytest.raises(dtlab.RankError, match="timeout after 6 s"):
        dtlab.launch(_at_work_when_time_is_up, 2, tmp_path / "file", timeout=TO_MEET, echo=False)
    assert (tmp_path / "file").read_text() == "cleaned up"
