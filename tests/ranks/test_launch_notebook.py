"""Launching from cells of a real kernel: functions by value, output in the cell, errors that spare it."""

import os
import signal
import threading
import time

import nbformat
import pytest
from nbclient import NotebookClient

_CELLS = [
    """
import os, signal, time
import dtlab
import torch, torch.distributed as dist

def add_up(x):
    dist.init_process_group("gloo")
    value = torch.tensor([float(x + dist.get_rank())])
    dist.all_reduce(value)
    print("rank", dist.get_rank(), "is done")
    return value.item()
""",
    "dtlab.launch(add_up, 2, 1)",
    """
offset = 5
def outer():
    k = 10
    def inner(): return k + offset + dtlab.ranks.environment.detect(os.environ).rank
    return inner
print(dtlab.launch(outer(), 2), dtlab.launch(lambda: offset, 2))
print(dtlab.launch(lambda: offset, 2, start_method="spawn"))
""",
    """
def leave():
    with dtlab.world() as w:
        w.barrier()
        if w.rank == 1:
            os._exit(3)
        w.barrier()
dtlab.launch(leave, 2)
""",
    """
def killed():
    with dtlab.world() as w:
        w.barrier()
        if w.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        w.barrier()
dtlab.launch(killed, 2)
""",
    """
def wrong(rate):
    with dtlab.world() as w:
        if w.rank == 1:
            raise ValueError("bad lr")
        w.barrier()
dtlab.launch(wrong, 2, 0.1)
""",
    """
def late():
    with dtlab.world() as w:
        w.barrier()
        if w.rank == 1:
            time.sleep(1000)
        w.barrier()
dtlab.launch(late, 2, timeout=6)
""",
    """
def forever():
    with dtlab.world() as w:
        print("pid", os.getpid(), flush=True)
        while True:
            w.barrier()
dtlab.launch(forever, 2)
""",
    "print('alive', dtlab.launch(add_up, 2, 1))",
]
_ADD, _OUTER, _LEAVE, _KILLED, _WRONG, _LATE, _FOREVER, _LAST = range(1, 9)


def stream(cell):
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")


def error(cell):
    [found] = [o for o in cell.outputs if o.output_type == "error"]
    return "\n".join(found.traceback)


def stderr_of(notebook):
    return [o.text for cell in notebook.cells for o in cell.outputs if o.get("name") == "stderr"]


@pytest.fixture(scope="module")
def notebook():
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.strip()) for text in _CELLS])
    # descriptors are not captured, as under nbval: what ranks print must reach the cell by itself
    client = NotebookClient(
        book,
        timeout=120,
        allow_errors=True,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.capture_fd_output=False"],
    )

    ended = threading.Event()

    def interrupt_when_running():
        while not ended.is_set():  # each cell has a limit of its own
            if stream(book.cells[_FOREVER]).count("pid") == 2:
                os.kill(client.km.provisioner.pid, signal.SIGINT)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=interrupt_when_running)
    thread.start()
    try:
        client.execute()
    finally:
        ended.set()
        thread.join()
    return book


def test_functions_of_cells_run_and_their_output_reaches_the_cell(notebook):
    cell = notebook.cells[_ADD]
    assert [o.data["text/plain"] for o in cell.outputs if o.output_type == "execute_result"] == ["[3.0, 3.0]"]
    assert sorted(stream(cell).splitlines()) == ["[Rank 0] rank 0 is done", "[Rank 1] rank 1 is done"]


def test_closures_and_lambdas_of_cells_run_also_with_spawn(notebook):
    assert stream(notebook.cells[_OUTER]) == "[15, 16] [5, 5]\n[5, 5]\n"


def test_a_dying_rank_does_not_take_the_kernel_along(notebook):
    assert error(notebook.cells[_LEAVE]).startswith("RankError: rank 1 of 2 exited with code 3")
    assert error(notebook.cells[_KILLED]).startswith("RankError: rank 1 of 2 was killed by SIGKILL")
    assert "[Rank 0] rank 0 is done" in stream(notebook.cells[_LAST])
    assert "alive [3.0, 3.0]" in stream(notebook.cells[_LAST])


def test_an_error_shows_the_cells_lines_and_nothing_of_the_launcher(notebook):
    text = error(notebook.cells[_WRONG])
    assert text.startswith("RankError: rank 1 of 2 failed: ValueError: bad lr\n")
    assert "Cell In[6], line 4, in wrong" in text
    assert '--> 4             raise ValueError("bad lr")' in text
    assert "launcher.py" not in text
    assert "ipykernel_" not in text


def test_a_cell_that_hangs_ends_by_itself_and_names_rank_and_operation(notebook):
    text = error(notebook.cells[_LATE])
    assert "timeout after 6 s: rank 1 of 2 is late: last operation barrier #1" in text
    assert "rank 0 waits in barrier #2" in text
    assert "time.sleep(1000)" in text


def test_interrupting_a_cell_stops_its_ranks(notebook):
    cell = notebook.cells[_FOREVER]
    [found] = [o for o in cell.outputs if o.output_type == "error"]
    assert found.ename == "KeyboardInterrupt"
    pids = [int(line.split()[-1]) for line in stream(cell).splitlines() if "pid" in line]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_cells_ran_in_order_without_a_word_on_stderr(notebook):
    assert [cell.execution_count for cell in notebook.cells] == list(range(1, len(_CELLS) + 1))
    assert stderr_of(notebook) == []
