"""``dtlab new``: the project runs as it is made: on two ranks, as one process, and rehearsed as a job."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.errors import UserError
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.plan import make_plan
from dtlab.sagemaker.rehearsal import rehearse
from dtlab.scaffold.create import create

ROOT = Path(__file__).parents[2]


def test_own_test_passes_and_a_job_of_it_survives_a_stop(tmp_path):
    project = create("sales_2", within=tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    job = read_job(project / "job.toml")
    assert job.name == "sales-2"
    assert make_plan(job).request["TrainingJobName"].startswith("sales-2")
    found = rehearse(replace(job, rehearsal=replace(job.rehearsal, hosts=1, ranks_per_host=1)), timeout=200)
    assert found.passed
    assert found.model_files == ("model.safetensors",)
    assert found.exit_codes == (143,)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is empty"),
        ("../x", "give letters and digits"),
        ("a b", "give letters and digits"),
        ("2nd", "give letters and digits"),
        ("a--b", "give letters and digits"),
        ("a" * 41, "give letters and digits"),
        ("taken", "is there already"),
        ("dangling", "is there already"),
    ],
)
def test_bad_name_or_a_taken_one_is_one_line_and_leaves_nothing(name, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    assert main(["new", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert {path.name for path in tmp_path.iterdir()} == {"taken", "dangling"}
    assert list((tmp_path / "taken").iterdir()) == []


def test_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="name = "):
        create("sales", within=tmp_path / "file")


def test_wrong_configuration_of_the_project_is_one_line(tmp_path):
    project = create("sales", within=tmp_path)
    config = project / "code/config.toml"
    config.write_text(config.read_text().replace('"bought"', '"sold"'))
    done = subprocess.run(
        [sys.executable, "code/train.py"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert "sold" in line
    assert not done.stderr
