"""What a live notebook shows: a user's mistake in two lines, and a word while a cell takes its time."""

import re

import pytest
from nbclient import NotebookClient
from nbformat import v4

# A slow cell lasts until the word is there, however late it comes; where there is none, it only sleeps.
CELLS = (
    "from dtlab.course import hint\n\nhint('03-averge')",
    "from dtlab.course import Checks, check, exercise, time_budget\nimport threading, time\n\n\n"
    "def takes_its_time():\n    time.sleep(0.5)\n"
    "    while any(isinstance(each, threading.Timer) for each in threading.enumerate()):\n"
    "        time.sleep(0.05)\n\n\n"
    "@exercise('97-slow', todo='x', hints=('a', 'b'))\n"
    "def slow(checks, wait):\n    wait()\n    checks.integer('one', 1, 1)\n\n\n"
    "check('97-slow', takes_its_time)",
    "check('97-slow', lambda: None)",
    "with time_budget(5):\n    takes_its_time()\n    print('done')",
)


class Updates(NotebookClient):
    """Remembers every text that a cell showed, also what was taken back."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.said = []

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.said.append((cell_index, msg["msg_type"], msg["content"]["data"]["text/plain"]))
        return super().process_message(msg, cell, cell_index)


def run(tmp_path, monkeypatch, static):
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    monkeypatch.setenv("DTLAB_STATIC", "1" if static else "0")
    notebook = v4.new_notebook(cells=[v4.new_code_cell(text) for text in CELLS])
    client = Updates(
        notebook,
        kernel_name="python3",
        timeout=60,
        allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    return notebook, client.said


@pytest.fixture
def live(tmp_path, monkeypatch):
    return run(tmp_path, monkeypatch, static=False)


def test_a_live_notebook_says_what_a_slow_cell_waits_for_and_takes_it_back(live):
    notebook, said = live
    assert said == [
        (1, "display_data", "running the check ..."),
        (1, "update_display_data", ""),
        (3, "display_data", "running this cell ..."),
        (3, "update_display_data", ""),
    ]
    (error,) = notebook.cells[0].outputs
    first, second = error.traceback
    assert first.startswith("UserError: exercise '03-averge' is unknown; known here: 03-average")
    assert second == "  line 3: hint('03-averge')"
    assert "running" not in str(notebook)


def test_a_build_or_a_test_shows_nothing_of_it(tmp_path, monkeypatch):
    notebook, said = run(tmp_path, monkeypatch, static=True)
    assert said == []
    text = notebook.cells[3].outputs[0].text
    seconds = re.match(r"done\nthis cell took (\d+\.\d) s; the lesson allows it 5 s", text)
    assert seconds is not None, text
    assert float(seconds[1]) >= 0.5
