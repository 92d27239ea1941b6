"""What children write to standard error is caught, and the descriptor is put back."""

import os
import subprocess

import pytest

from dtlab.course.terminal import terminal_output


def test_a_childs_words_are_caught_and_the_next_childs_are_not() -> None:
    before = os.fstat(2)
    with terminal_output() as terminal:
        subprocess.run(["sh", "-c", "echo first >&2; echo second >&2; echo >&2"], check=True)
    assert terminal.text == "first\nsecond\n\n"
    assert terminal.last_line == "second"
    assert (os.fstat(2).st_dev, os.fstat(2).st_ino) == (before.st_dev, before.st_ino)


def test_an_exception_passes_through_and_the_words_before_it_are_kept() -> None:
    def write_and_fail(terminal: terminal_output) -> None:
        with terminal:
            os.write(2, b"before\xff\n")
            raise KeyError("gone")

    terminal = terminal_output()
    with pytest.raises(KeyError, match="gone"):
        write_and_fail(terminal)
    assert terminal.text == "before�\n"


def test_silence_has_no_last_line() -> None:
    with terminal_output() as terminal:
        pass
    assert terminal.last_line == ""
