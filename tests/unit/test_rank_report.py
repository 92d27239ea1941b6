"""Whom an error names, judged from made-up reports."""

import signal

import pytest

from dtlab.ranks import crash
from dtlab.ranks.rank_state import Frame, RankState
from dtlab.ranks.report import RankReport, describe_exception, lost_peer, report_of, signal_name
from dtlab.ranks.verdict import rank_error, timeout_error, to_blame

GLOO = (
    "[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4843. "
    "This is typically caused by a peer that crashed"
)


def raised(rank, kind, text, *, time, lost=False, **more):
    return RankReport(rank, "raised", exception_type=kind, message=text, time=time, lost_peer=lost, **more)


@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        (["DistBackendError", "RuntimeError"], GLOO, True),
        (["RuntimeError"], "[/g/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer", True),
        (["RuntimeError"], "[/g/buffer.cc:78] Timed out waiting 2000ms for recv operation to complete", True),
        (["DistStoreError", "RuntimeError"], "wait timeout after 8000ms, keys: /a", True),
        (
            ["DistNetworkError", "RuntimeError"],
            "Failed to recv, got 0 bytes. Connection was likely closed.",
            True,
        ),
        (["RuntimeError"], "connection refused", False),
        (["RuntimeError"], "Connection reset while reading s3://data/part-3", False),
        (["RuntimeError"], "[Errno 32] broken pipe", False),
        (["RuntimeError"], "socket timeout", False),
        (["RuntimeError"], "mat1 and mat2 shapes cannot be multiplied", False),
        (["ConnectionResetError", "OSError"], "Connection reset by peer", False),
        (["ValueError"], "the socket timeout must be positive", False),
        (["RuntimeError"], "DataLoader worker (pid 7) exited unexpectedly with exit code 1", False),
    ],
)
def test_only_torchs_own_texts_about_peers_count_as_a_lost_peer(names, text, expected):
    assert lost_peer(names, text) is expected


def test_the_first_real_failure_is_to_blame_even_when_a_lost_peer_reported_before_it():
    reports = [
        raised(0, "RuntimeError", GLOO, time=1.0, lost=True),
        raised(1, "ValueError", "second", time=3.0),
        RankReport(2, "killed", exit_code=-signal.SIGSEGV, time=2.0),
    ]
    assert to_blame(reports).rank == 2
    error = rank_error(reports, "restarts are off")
    assert str(error).splitlines() == [
        "rank 2 of 3 was killed by SIGSEGV",
        "  rank 0 lost its peer (Connection closed by peer)",
        "  rank 1 failed too: ValueError: second",
        "  restarts are off",
    ]


def test_a_long_message_keeps_its_first_lines_and_loses_the_c_stack():
    text = "first\nsecond\nException raised from f at x.cpp:3\nframe #0"
    error = rank_error([raised(0, "RuntimeError", text, time=0)], "off")
    assert str(error).splitlines()[:2] == ["rank 0 of 1 failed: RuntimeError: first", "second"]
    assert "frame #0" not in str(error)
    assert error.message == text


def test_when_ranks_only_lost_peers_the_one_that_did_not_come_is_named():
    waiting = RankState(0, "all_reduce", 4, False, groups={"0": 4})
    behind = RankState(1, "all_reduce", 3, True, groups={"0": 3})
    reports = [
        raised(0, "RuntimeError", "Timed out waiting 10ms for recv", time=1, lost=True, state=waiting),
        RankReport(1, "stopped", state=behind),
    ]
    error = rank_error(reports, "off")
    assert (error.rank, error.late) == (1, (1,))
    assert str(error).startswith("rank 1 of 2 is late: last operation all_reduce #3; rank 0 waits in")
    assert "rank 0 gave up: Timed out waiting" in str(error)


def test_a_rank_that_returned_early_is_named_by_the_one_that_waited():
    waiting = RankState(1, "barrier", 2, False, groups={"0": 2})
    reports = [
        RankReport(0, "returned"),
        raised(1, "RuntimeError", GLOO, time=1, lost=True, state=waiting),
    ]
    first = str(rank_error(reports, "off")).splitlines()[0]
    assert first == (
        "rank 1 of 2 failed: it waited in barrier #2 for rank 0, which had already returned "
        "(Connection closed by peer)"
    )


def test_a_timeout_tells_ranks_that_returned_from_ranks_that_hang():
    stack = (Frame("train.py", 7, "step", "sleep()"),)
    reports = [RankReport(0, "returned"), RankReport(1, "stopped", state=RankState(1, stack=stack))]
    error = timeout_error(5, reports)
    assert str(error).splitlines()[0] == (
        "timeout after 5 s: rank 1 of 2 at train.py:7 in step: sleep(); rank 0 had returned"
    )
    assert (error.rank, error.late) == (1, (1,))


def test_ranks_that_never_started_are_named():
    error = timeout_error(5, [RankReport(0, "stopped"), RankReport(1, "starting")])
    assert str(error).splitlines()[0] == "timeout at start-up: rank 1 had not started yet"
    assert error.rank == 1


def test_an_exception_survives_its_journey():
    class Odd(ValueError):
        def __str__(self):
            raise RuntimeError("no text")

    def deep(n):
        if n == 0:
            raise Odd
        deep(n - 1)

    try:
        deep(200)
    except Odd as odd:
        report = report_of(3, describe_exception(odd), 1)
    assert (report.rank, report.exception_type, report.exit_code) == (3, "Odd", 1)
    assert len(report.frames) == 60
    assert report.frames[-1].source == "raise Odd"
    assert not report.start_up
    assert describe_exception(ModuleNotFoundError("no module"))["start_up"]


def test_the_stack_of_a_crash_is_found_behind_the_output():
    dump = crash.read(
        "loading\r\nepoch 1\rFatal\n\nFatal Python error: Segmentation fault\n\n"
        "Stack (most recent call first):\n"
        '  File "/x/lib.py", line 5 in inner\n'
        '  File "/x/train.py", line 9 in step\n'
        '  File "<string>", line 1 in <module>\n\nExtension modules: a, b\n'
    )
    assert [(f.file, f.line, f.function) for f in dump.frames] == [
        ("/x/train.py", 9, "step"),
        ("/x/lib.py", 5, "inner"),
    ]
    assert dump.before == ["loading", "Fatal"]
    assert crash.read("hello\n").frames == ()


def test_signals_are_named():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(63).startswith(("SIG", "signal 63"))


def test_of_a_crash_file_the_log_gets_the_stack_that_matters(tmp_path):
    threads = (
        'Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n\n'
        'Thread 0x2 (most recent call first):\n  File "main.py", line 2 in step\n\nExtension modules: x\n'
    )
    (tmp_path / "crash").write_text(threads)
    told = crash.told(tmp_path / "crash").decode()
    assert "main.py" in told
    assert "a.py" not in told
    (tmp_path / "crash").write_text(threads.replace("Thread 0x1", "Current thread 0x1"))
    told = crash.told(tmp_path / "crash").decode()
    assert "a.py" in told
    assert "main.py" not in told
    assert crash.told(tmp_path / "nothing") == b""
