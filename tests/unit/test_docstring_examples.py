"""Every example in a docstring runs and prints what it shows."""

import doctest
import importlib
from pathlib import Path

import pytest

import dtlab

PACKAGE = Path(dtlab.__file__).parent
MODULES = [
    ".".join(("dtlab", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


def test_the_package_shows_examples() -> None:
    assert {"dtlab.cost.billing", "dtlab.cost.memory", "dtlab.data.batch"} <= set(MODULES)
