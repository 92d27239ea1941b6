"""pyproject.toml, requirements.lock and environment.yml say the same."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PYPROJECT["optional-dependencies"]
CONDA_EXTRAS = {"lab", "sagemaker", "sagemaker-sdk", "track", "tune", "dev"}
PLATFORM_ONLY = ("nvidia-", "cuda-", "triton", "appnope", "pywin", "colorama", "pyobjc")


def lock_lines() -> list[str]:
    text = (ROOT / "requirements.lock").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pins() -> dict[str, Version]:
    found = {}
    for line in lock_lines():
        name, version = line.split("==")
        found[canonicalize_name(name)] = Version(version)
    return found


def conda() -> tuple[list[str], list[str]]:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip_lists = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    assert len(pip_lists) == 1
    return [entry for entry in dependencies if isinstance(entry, str)], pip_lists[0]


def requirement_cases() -> list[tuple[str, str]]:
    cases = [("dependencies", text) for text in PYPROJECT["dependencies"]]
    cases += [(extra, text) for extra, texts in EXTRAS.items() for text in texts]
    return cases


@pytest.mark.parametrize(("origin", "text"), requirement_cases())
def test_every_requirement_is_pinned_within_its_specifier(origin: str, text: str) -> None:
    requirement = Requirement(text)
    if requirement.name == "dtlab":
        assert requirement.extras <= set(EXTRAS), f"{origin} refers to an extra that does not exist: {text}"
        return
    version = pins().get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} ({origin}) is not in requirements.lock: run make lock"
    assert requirement.specifier.contains(version), (
        f"{requirement.name}=={version} in the lock is outside {text}"
    )


def test_lock_lines_are_sorted_exact_versions_without_local_suffix() -> None:
    lines = lock_lines()
    assert len(lines) > 100
    assert lines == sorted(lines)
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][A-Za-z0-9.!]*", line)] == []
    assert len(pins()) == len(lines), "a package is pinned twice"


def test_lock_holds_nothing_of_one_platform_and_not_dtlab_itself() -> None:
    names = list(pins())
    assert [name for name in names if name.startswith(PLATFORM_ONLY)] == []
    assert "dtlab" not in names


def test_lock_script_drops_suffixes_platform_packages_and_dtlab() -> None:
    freeze = (
        "# Editable Git install with no remote (dtlab==0.1.0)\n-e /home/me/dtlab\ndtlab==0.1.0\n"
        "torch==2.13.0+cpu\nnvidia-nccl-cu12==2.27.5\ntriton==3.5.0\nappnope==0.1.4\npywinpty==3.0.0\n"
        "PyYAML==6.0.4\ndocstring_parser==0.18.0\nlocal @ file:///tmp/x.whl\n"
    )
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import lock
    finally:
        sys.path.pop(0)
    assert lock.lock_lines(freeze) == ["docstring-parser==0.18.0", "pyyaml==6.0.4", "torch==2.13.0"]


def test_conda_environment_has_the_python_of_the_lock() -> None:
    plain, _ = conda()
    (python,) = [entry for entry in plain if re.match(r"python\b", entry)]
    version = python.partition("=")[2].lstrip("=")
    assert version == "3.11"
    header = (ROOT / "requirements.lock").read_text().split("\n\n")[0]
    assert f"Python {version}" in header
    assert Requirement(f"python{PYPROJECT['requires-python']}").specifier.contains(version)


def test_conda_environment_installs_the_extras_under_the_lock() -> None:
    _, pip = conda()
    assert pip[0] == "-c requirements.lock", "the constraints come before what they constrain"
    (editable,) = [entry for entry in pip if entry.startswith("-e ")]
    match = re.fullmatch(r"-e \.\[([a-z,-]+)\]", editable)
    assert match, editable
    named = set(match[1].split(","))
    assert named == CONDA_EXTRAS
    assert named <= set(EXTRAS)
    assert {"ipykernel", "ipywidgets"} <= set(pip)


def test_conda_environment_states_no_version_of_its_own() -> None:
    plain, pip = conda()
    assert [entry for entry in pip if re.search(r"[=<>~]", entry)] == []
    assert [entry for entry in plain if "=" in entry and not entry.startswith("python=")] == []


def test_every_extra_can_be_made_by_a_make_target_or_by_conda() -> None:
    reached = CONDA_EXTRAS | {"bench"}
    assert set(EXTRAS) == reached


def test_make_names_its_targets() -> None:
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("lab", "test", "train", "notebooks", "bench", "lint", "types", "lock", "clean"):
        assert re.search(rf"^  make {target}\s", text, re.M), target
