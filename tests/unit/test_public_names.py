"""What ``dtlab.<name>`` gives, and what it says of a name that it lacks."""

import subprocess
import sys

import pytest

import dtlab


def test_the_parts_of_a_loop_of_ones_own_are_public():
    assert dtlab.Generators.__name__ == "Generators"
    assert dtlab.global_steps.__name__ == "global_steps"
    assert {"Generators", "global_steps"} <= set(dir(dtlab))


@pytest.mark.parametrize(("name", "near"), [("Scheduler", "Schedule"), ("Checkpoint", "Checkpointer")])
def test_a_name_like_a_public_one_is_answered_with_it(name, near):
    with pytest.raises(AttributeError, match=f"no attribute {name!r}: did you mean {near}"):
        getattr(dtlab, name)
    assert not hasattr(dtlab, "__wrapped__")


def test_importing_dtlab_still_imports_no_torch():
    code = "import sys, dtlab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
