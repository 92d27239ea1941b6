"""SIGTERM and Ctrl-C at any moment of a command: one line and an exit code, never a traceback, never lost."""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from dtlab.commands.ending import EndedBySignal, Ending

# The signal comes at one line of cli.py after the other, each time in a copy of the process, and once more at
# the next line: schedulers repeat SIGTERM, and people Ctrl-C.
_AT_EACH_LINE = """
import json, os, signal, sys, tempfile, traceback
from dtlab import cli
from dtlab.commands import ending

number = int(sys.argv[1])

def run_with_signal_at(point):
    heard = tempfile.TemporaryFile("w+")
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(heard.fileno(), 2)
        count, code = 0, 99

        def trace(frame, event, _):
            nonlocal count
            if frame.f_code.co_filename not in (cli.__file__, ending.__file__):
                return None
            # Before begin and after close Python's own handling is right.
            told = frame.f_code.co_name not in ("begin", "close", "main", "__init__")
            if event == "line" and told:
                count += 1
                if count in (point, point + 1):
                    signal.raise_signal(number)
            return trace

        try:
            sys.settrace(trace)
            code = cli.main(["cost", "ml.no.such"])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.settrace(None)
            sys.stderr.flush()
            os._exit(code if count >= point else 77)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    heard.seek(0)
    return code, heard.read()

found, point = [], 1
while (outcome := run_with_signal_at(point))[0] != 77:
    found.append(outcome)
    point += 1
print(json.dumps(found))
"""


@pytest.mark.parametrize(("number", "line"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_signal_at_any_line_of_a_command_is_one_line_and_its_exit_code(number, line):
    done = subprocess.run(
        [sys.executable, "-c", _AT_EACH_LINE, str(int(number))], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 30
    *_, (last_code, last_heard) = found
    assert last_code == 128 + number, last_heard
    for code, heard in found:
        assert code == 128 + number, heard
        # The command's own line may have been told already.
        told = [text for text in heard.splitlines() if "no.such" not in text]
        assert told == [f"dtlab: {line}"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_that_other_code_loses_comes_again(number):
    ending = Ending()
    try:
        ending.begin()
        with suppress(BaseException):  # as a C extension that imports another module does
            signal.raise_signal(number)
        with pytest.raises(EndedBySignal, match=signal.Signals(number).name):
            time.sleep(30)
    finally:
        ending.close(process_ends=False)


def test_signal_that_is_being_answered_does_not_come_again():
    ending, again = Ending(), 0
    try:
        ending.begin()
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            until = time.monotonic() + 1.0  # ranks are ended here
            while time.monotonic() < until:
                try:
                    time.sleep(0.05)
                except EndedBySignal:
                    again += 1
    except EndedBySignal:
        ending.is_over = True
    finally:
        ending.close(process_ends=False)
    assert again == 0


def test_signal_that_a_callback_forgets_comes_again_without_its_traceback(capsys):
    class Forgotten:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    ending = Ending()
    try:
        ending.begin()
        forgotten = Forgotten()
        del forgotten
        with pytest.raises(EndedBySignal, match="SIGTERM"):
            time.sleep(30)
    finally:
        ending.close(process_ends=False)
    assert capsys.readouterr().err == ""
