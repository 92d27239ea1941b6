"""The doctor adds two numbers on two real ranks."""

import dtlab
from dtlab.diagnose.checks import FAIL, OK, WARN
from dtlab.diagnose.doctor import two_ranks


def test_two_ranks_add_up():
    report = dtlab.doctor(environ={})
    lines = {line.name: line for line in report.lines}
    assert lines["2 ranks"].status == OK, str(report)
    assert "1 + 2 = 3" in lines["2 ranks"].value
    assert lines["start method"].status in (OK, WARN)


def test_start_method_that_does_not_work_is_said_and_spawn_tried(monkeypatch):
    monkeypatch.setenv("DTLAB_START_METHOD", "warp")
    lines = {line.name: line for line in two_ranks()}
    assert lines["start method"].status == WARN
    assert "warp" in lines["start method"].value
    assert "DTLAB_START_METHOD=spawn" in lines["start method"].fix
    assert lines["2 ranks"].status == OK


def test_ranks_that_fail_are_a_failure_with_their_own_reason(monkeypatch):
    monkeypatch.setenv("DTLAB_JOIN_TIMEOUT", "soon")
    (line,) = two_ranks()
    assert line.status == FAIL
    assert "DTLAB_JOIN_TIMEOUT='soon'" in line.value
    assert line.fix
