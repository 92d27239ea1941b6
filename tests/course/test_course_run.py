"""Running notebooks as CI does: what must fail, fails."""

import os
import shutil
import socket
import subprocess
import sys

import pytest

from dtlab.course import offline
from dtlab.course.build import build
from dtlab.course.run import guard_problems, run
from dtlab.errors import UserError

TITLE = "# %% [markdown]\n# # Title\n\n"


def lesson(root, name, text):
    (root / "src").mkdir(exist_ok=True)
    (root / "src" / f"{name}.py").write_text(TITLE + text)
    build([name], root=root)


def test_learner_and_solution_pass_without_network_and_seconds_are_printed(sample, capfd):
    assert run(root=sample, no_network=True) == 0
    out = capfd.readouterr().out
    assert f"network cut by {offline.NAMESPACE}" in out or f"network cut by {offline.GUARD}" in out
    assert "learner   98_sample.ipynb" in out
    assert "13 cells" in out
    assert "14 cells" in out
    assert out.endswith("all notebooks passed\n")


def test_what_a_killed_kernel_leaves_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", str(tmp_path / "where"))
    text = "import os, pathlib, tempfile\npathlib.Path(os.environ['WHERE']).write_text(tempfile.mkdtemp())\n"
    lesson(tmp_path, "00_leaves", f"# %%\n{text}")
    assert run(root=tmp_path, learner=False) == 0
    assert not os.path.exists((tmp_path / "where").read_text())


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A course of one notebook that will warn, one that will drift, and one without a code cell."""
    root = tmp_path_factory.mktemp("three")
    lesson(
        root,
        "00_warns",
        "# %%\nimport os, sys\nif os.environ.get('NOISY'): print('FutureWarning', file=sys.stderr)\n",
    )
    lesson(
        root,
        "00_drifts",
        "# %% tags=[\"nbval-check-output\"]\nimport os\nprint(os.environ.get('NOISY', 'no'))\n",
    )
    lesson(root, "00_empty", "# %% [markdown]\n# nothing to run\n")
    return root


@pytest.mark.parametrize(
    "jobs", [1, 2]
)  # at once, no report of a notebook may be lost or mixed with another's
def test_warnings_drift_and_no_ops_each_fail_the_run_by_name(three, capfd, monkeypatch, jobs):
    monkeypatch.setenv("NOISY", "yes")
    assert run(root=three, learner=False, jobs=jobs) == 1
    out = capfd.readouterr().out
    assert "solution 00_warns.ipynb: 1 cells failed" in out
    assert "00_warns.ipynb::Cell 0 wrote to stderr" in out
    assert "solution 00_drifts.ipynb: 1 cells failed" in out
    assert "solution 00_empty.ipynb: executed no code cell" in out


def test_the_guard_refuses_a_notebook_that_finished_in_no_time(tmp_path):
    quick = {"02_x.ipynb": {"seconds": 0.01, "executed": 3, "failed": 0}}
    assert guard_problems("learner", [tmp_path / "02_x.ipynb"], quick) == [
        "learner 02_x.ipynb: finished in no time (0.01 s)"
    ]


def test_an_unbuilt_notebook_and_an_empty_course_are_user_errors(sample, tmp_path):
    shutil.rmtree(sample / "solutions")
    with pytest.raises(UserError, match=r"98_sample.ipynb \(solution\) is not built"):
        run(root=sample, learner=False)
    (tmp_path / "none" / "src").mkdir(parents=True)
    with pytest.raises(UserError, match="no lesson to run"):
        run(root=tmp_path / "none")
    with pytest.raises(UserError, match="jobs: 0"):
        run(root=sample, jobs=0)


REACH = """
import socket
with socket.socket() as server:
    server.bind(("127.0.0.1", 0)); server.listen()
    with socket.create_connection(server.getsockname(), timeout=2): print("loopback up")
def connect(): socket.create_connection(("192.0.2.1", 9), timeout=2)
def look_up(): socket.getaddrinfo("example.org", 80)
for reach in (connect, look_up):
    try:
        reach(); print("reached")
    except OSError as error:
        print("cut" if not isinstance(error, TimeoutError) else "not cut, timed out")
"""


@pytest.mark.parametrize("way", ["namespace", "guard"])
def test_a_cut_network_reaches_loopback_and_nothing_else(way, tmp_path, monkeypatch):
    if way == "guard":
        monkeypatch.setattr(offline.shutil, "which", lambda name: None)
    command, extra, used = offline.offline_command([sys.executable, "-c", REACH], tmp_path)
    if way == "namespace" and used != offline.NAMESPACE:
        pytest.skip("unshare is not allowed here")
    assert used == (offline.GUARD if way == "guard" else offline.NAMESPACE)
    ran = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True, check=False)
    assert ran.stdout == "loopback up\ncut\ncut\n", ran.stderr
    assert socket.socket.connect.__name__ == "connect"


def test_the_command_line_gives_one_line_and_code_2_for_an_unknown_lesson(sample):
    ran = subprocess.run(
        [sys.executable, "-m", "dtlab.course", "verify", "77"],
        cwd=sample.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr == "lesson '77' has no source in src/; there are: 98\n"
