"""The sample lesson, built once for all tests of the course machinery."""

import shutil
from pathlib import Path

import pytest

from dtlab.course.build import build

SAMPLE = Path(__file__).parent / "sample"


@pytest.fixture(scope="session")
def built_sample(tmp_path_factory):
    """A folder like `notebooks/` with the sample lesson built; do not change it, copy it."""
    root = tmp_path_factory.mktemp("sample") / "notebooks"
    shutil.copytree(SAMPLE, root)
    build(root=root)
    return root


@pytest.fixture
def sample(built_sample, tmp_path):
    """A private copy of the built sample lesson."""
    return shutil.copytree(built_sample, tmp_path / "notebooks")


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    """Tests never touch the reader's progress file."""
    monkeypatch.setenv("DTLAB_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.delenv("DTLAB_COURSE_STRICT", raising=False)
    return tmp_path / "progress.json"
