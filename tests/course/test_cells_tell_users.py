"""What a live notebook shows: a user's mistake in two lines, and a word while a cell takes its time."""

import pytest
from nbclient import NotebookClient
from nbformat import v4

CELLS = (
    "from dtlab.course import hint\n\nhint('03-averge')",
    "from dtlab.course import Checks, check, exercise, time_budget\nimport time\n\n\n"
    "@exercise('97-slow', todo='x', hints=('a', 'b'))\n"
    "def slow(checks, answer):\n    time.sleep(answer)\n    checks.integer('one', 1, 1)\n\n\n"
    "check('97-slow', 3)",
    "check('97-slow', 0.01)",
    "with time_budget(5):\n    time.sleep(2.5)\n    print('done')",
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
    assert notebook.cells[3].outputs[0].text.startswith("done\nthis cell took 2.")
