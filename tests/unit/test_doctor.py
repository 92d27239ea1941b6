"""The doctor's findings on good and bad machines, without starting a process."""

import json

import pytest

import dtlab
from dtlab.diagnose import checks
from dtlab.diagnose.checks import FAIL, OK, WARN, Line
from dtlab.diagnose.doctor import Report


def test_report_of_this_machine_covers_what_ranks_need():
    report = dtlab.doctor(run_ranks=False, environ={})
    names = [line.name for line in report.lines]
    for name in (
        "Python",
        "torch",
        "backends",
        "CUDA",
        "cores",
        "memory",
        "open files",
        "loopback",
        "free ports",
        "jupyterlab",
        "ipywidgets",
        "SageMaker",
        "launcher",
    ):
        assert name in names
    assert report.ok, str(report)
    assert {line.status for line in report.lines} <= {OK, WARN, FAIL}
    assert all(line.fix for line in report.lines if line.status != OK)


def test_json_text_and_table_say_the_same():
    report = Report((Line(OK, "torch", "2.13.0"), Line(FAIL, "NCCL", "<2 of them>", "pip uninstall & retry")))
    data = json.loads(report.to_json())
    assert data["ok"] is False
    assert data["counts"] == {"OK": 1, "WARN": 0, "FAIL": 1}
    assert data["lines"][1] == {
        "status": "FAIL",
        "name": "NCCL",
        "value": "<2 of them>",
        "fix": "pip uninstall & retry",
    }
    assert "FAIL  NCCL   <2 of them>" in str(report)
    assert "fix: pip uninstall & retry" in str(report)
    assert "&lt;2 of them&gt;" in report._repr_html_()
    assert "<2 of them>" not in report._repr_html_()
    assert report.failed


def test_warnings_do_not_fail():
    report = Report((Line(WARN, "cores", "1", "more"),))
    assert report.ok
    assert report.verdict() == "ready, with 1 warning"


@pytest.mark.parametrize(
    ("used", "cuda", "installed", "status", "words"),
    [
        ("2.27.3", "12.8", {"nvidia-nccl-cu12": "2.27.3"}, OK, "2.27.3"),
        ("2.27.3", "12.8", {}, OK, "linked into torch"),
        ("2.18.1", "12.8", {"nvidia-nccl-cu12": "2.27.3"}, FAIL, "2.18.1"),
        (
            "2.27.3",
            "12.8",
            {"nvidia-nccl-cu12": "2.27.3", "nvidia-nccl-cu11": "2.21.5"},
            FAIL,
            "nvidia-nccl-cu11 2.21.5",
        ),
    ],
)
def test_nccl_that_does_not_match_the_build_fails(used, cuda, installed, status, words):
    (line,) = checks.nccl_match(used, cuda, installed)
    assert line.status == status
    assert words in line.value
    assert bool(line.fix) == (status == FAIL)


def test_contradictory_launcher_variables_fail_with_the_fix():
    report = dtlab.doctor(run_ranks=False, environ={"RANK": "0", "WORLD_SIZE": "4"})
    (line,) = [line for line in report.lines if line.name == "launcher"]
    assert line.status == FAIL
    assert "MASTER_ADDR, MASTER_PORT" in line.value
    assert "torchrun" in line.fix
    assert not report.ok


def test_sagemaker_variables_are_read():
    lines = checks.launcher(
        {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "0"}
    )
    assert "2 host(s) x 1 rank(s) = 2, this is host 1, master algo-1:7777" in lines[0].value
    (line,) = checks.launcher({"SM_HOSTS": "algo-1", "SM_CURRENT_HOST": "algo-1"})
    assert line.status == FAIL


def test_low_limit_of_open_files_is_a_warning():
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        (line,) = checks.open_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (line.status, line.value) == (WARN, "limit 512")
    assert "ulimit -n" in line.fix


def test_missing_shared_memory_is_said(tmp_path):
    (line,) = checks.shared_memory(str(tmp_path / "none"))
    assert line.status in (OK, WARN)
    assert line.value == "not there"


def test_port_in_use_is_seen():
    import socket

    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        assert not checks._port_is_free(busy.getsockname()[1])
