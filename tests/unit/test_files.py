"""Files that appear whole, and outputs that are no files: devices and pipes are written to and stay."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dtlab.errors import UserError
from dtlab.files import appears_whole, require_writable

NULL, FULL = Path("/dev/null"), Path("/dev/full")


def is_device(path):
    return stat.S_ISCHR(path.stat().st_mode)


def test_the_null_device_takes_the_bytes_and_stays_a_device():
    require_writable(NULL, "report")
    with appears_whole(NULL, "report") as beside:
        assert beside == NULL
        beside.write_text("gone")
    assert is_device(NULL)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
def test_a_full_device_is_one_line_that_names_the_field():
    with pytest.raises(UserError, match="report = '/dev/full': No space left") as caught:  # noqa: SIM117
        with appears_whole(FULL, "report") as beside:
            beside.write_text("no room")
    assert "\n" not in str(caught.value)
    assert is_device(FULL)


def test_a_link_to_a_device_is_followed_and_stays_a_link(tmp_path):
    link = tmp_path / "report.json"
    link.symlink_to(NULL)
    require_writable(link, "report")
    with appears_whole(link, "report") as beside:
        beside.write_text("gone")
    assert link.is_symlink()
    assert is_device(NULL)


def test_a_named_pipe_gets_what_is_written(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    with appears_whole(pipe, "report") as beside:
        beside.write_text("through")
    reader.join(60)
    assert got == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_that_failed_leaves_the_old_one_and_nothing_beside_it(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), appears_whole(path, "report") as beside:  # noqa: PT012
        beside.write_text("new")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


_REPLACED = """
import os, sys
from pathlib import Path
from dtlab.files import appears_whole

def write(folder, text):
    with appears_whole(folder, "folder") as beside:
        beside.mkdir()
        for name in ("one", "two"):
            (beside / name).write_text(text)

removed = 0

def end_in_the_middle_of_the_removal(event, _):
    global removed
    removed += event == "os.remove"
    if removed == 2:
        os._exit(9)

write(Path(sys.argv[1]), "old")
sys.addaudithook(end_in_the_middle_of_the_removal)
write(Path(sys.argv[1]), "new")
"""


def test_a_folder_is_whole_also_when_its_writer_is_killed_while_it_removes_the_old_one(tmp_path):
    folder = tmp_path / "model"
    done = subprocess.run([sys.executable, "-c", _REPLACED, str(folder)], timeout=60, check=False)
    assert done.returncode == 9
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"one": "new", "two": "new"}
