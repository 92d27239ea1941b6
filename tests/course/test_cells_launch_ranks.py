"""Ranks launched from the cells of a real kernel: what works, and how a cell fails."""

import pytest
from nbclient import NotebookClient
from nbformat import v4

SETUP = """\
import os, signal, time
import psutil, torch
import torch.distributed as dist
from dtlab import launch, world

def children():
    return {p.pid for p in psutil.Process().children(recursive=True)}
"""


def run_cells(tmp_path, *sources, limit=60):
    """Run the cells in one kernel, going on after errors; gives (text, error name, error text) of each."""
    notebook = v4.new_notebook(cells=[v4.new_code_cell(source) for source in (SETUP, *sources)])
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=limit,
        allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    results = []
    for cell in notebook.cells[1:]:
        text = "".join(o.text for o in cell.outputs if o.output_type == "stream")
        errors = [o for o in cell.outputs if o.output_type == "error"]
        shown = "\n".join("\n".join(o.traceback) for o in errors)
        results.append((text, errors[0].ename if errors else "", shown))
    return results


def test_functions_lambdas_and_closures_of_cells_reach_spawned_ranks(tmp_path):
    results = run_cells(
        tmp_path,
        "def f(x):\n    with world() as w:\n        return w.rank + x",
        "print(list(launch(f, 2, 10, start_method='spawn', timeout=40)))",
        "k = 5\n"
        "def outer():\n    inside = 7\n    return lambda: (k, inside)\n"
        "print(list(launch(outer(), 2, start_method='spawn', timeout=40)))",
        "import multiprocessing\nprint(multiprocessing.active_children())",
    )
    assert [text for text, _, _ in results] == ["", "[10, 11]\n", "[(5, 7), (5, 7)]\n", "[]\n"]


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """Three failing cells and a working one after each, in one kernel."""
    return run_cells(
        tmp_path_factory.mktemp("cells"),
        "launch(lambda: None, 2, timeout=30)\nbefore = children()",
        "def leave():\n"
        "    with world() as w:\n"
        "        if w.rank == 1:\n            os._exit(3)\n"
        "        w.barrier()\n"
        "launch(leave, 2, timeout=20)",
        "print('alive', children() == before)",
        "def killed():\n"
        "    with world() as w:\n"
        "        if w.rank == 1:\n            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        w.barrier()\n"
        "launch(killed, 2, timeout=20)",
        "print('alive', children() == before)",
        "def late():\n"
        "    with world() as w:\n"
        "        if w.rank == 1:\n            time.sleep(3600)\n"
        "        dist.all_reduce(torch.ones(1))\n"
        "began = time.monotonic()\n"
        "launch(late, 2, timeout=3)",
        "print('alive', children() == before, time.monotonic() - began < 20)",
    )


def test_a_rank_that_exits_is_named_with_its_code_and_the_kernel_lives(failures):
    (_, name, shown), (after, _, _) = failures[1:3]
    assert name == "RankError"
    assert "rank 1 of 2 exited with code 3" in shown
    assert after == "alive True\n"


def test_a_rank_that_is_killed_is_named_with_its_signal_and_the_kernel_lives(failures):
    (_, name, shown), (after, _, _) = failures[3:5]
    assert name == "RankError"
    assert "rank 1 of 2 was killed by SIGKILL" in shown
    assert after == "alive True\n"


def test_a_cell_that_would_hang_ends_by_itself_naming_the_late_rank_and_operation(failures):
    (_, name, shown), (after, _, _) = failures[5:7]
    assert name == "RankError"
    assert "timeout after 3 s: rank 1 of 2 is late" in shown
    assert "all_reduce" in shown
    assert after == "alive True True\n"
