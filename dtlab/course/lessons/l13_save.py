"""Check of lesson 13's files: under its final name a checkpoint is whole, whenever its writer is killed."""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import require_function

if TYPE_CHECKING:
    from collections.abc import Iterator

BIG = bytes(range(256)) * 4096  # 1 MiB
SMALL = bytes(range(256))  # fits into Python's own buffer, so that a missing flush shows


@exercise(
    "13-save",
    todo="write under another name, push the bytes to the disk, rename; and find the highest step by number",
    hints=(
        "A file has its name from the first byte on. Which name may a half-written file have, so that nobody "
        "takes it for a checkpoint? And which operation of the file system gives a file another name in one "
        "go?",
        'beside = folder / f".step-{step:06d}.writing"; with beside.open("wb") as file: file.write(data); '
        'file.flush(); os.fsync(file.fileno()). Then os.replace(beside, folder / f"step-{step:06d}"). '
        'newest: max of int(path.name.removeprefix("step-")) over folder.glob("step-*").',
    ),
    references=("dtlab.files.appears_whole",),
)
def save(checks: Checks, answer: Any, newest: Any) -> None:
    """Counts of files first, with a writer that the kernel kills half-way; then contents and order."""
    require_function(answer)
    require_function(newest)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _nothing_there(newest, folder)
        answer(folder, 5, b"five" * 50)
        answer(folder, 10, b"ten!" * 50)
        look = 'the checkpoint of step 5 is the file "step-000005"; earlier ones stay'
        checks.integer("files under a final name after two saves", len(_final(folder)), 2, look=look)
        first = _pair(newest(folder))
        checks.integer("newest of steps 5 and 10", first[0], 10, look=_why_not_10(first[0], _final(folder)))
        later = time.time() + 1000
        for path in folder.glob("step-*5"):
            os.utime(path, (later, later))
        checks.integer(
            "newest of steps 5 and 10, when a copy gave step 5 a later date",
            _pair(newest(folder))[0],
            10,
            look="the number in the name decides, not st_mtime: a copy or a backup writes the date anew",
        )
        _killed_half_way(answer, folder)
        checks.integer(
            "files under a final name after a writer was killed half-way through step 15",
            len(_final(folder)),
            2,
            look="what is half written must not have the final name, and nothing older may be gone yet: "
            "write beside it, then rename",
        )
        after = _pair(newest(folder))
        checks.integer("newest after the kill", after[0], 10, look="pass over what was never finished")
        answer(folder, 15, BIG)
        again = _pair(newest(folder))
        checks.integer(
            "newest after step 15 was written again", again[0], 15, look="a leftover is no obstacle"
        )
        answer(folder, 999_999, b"a")
        answer(folder, 1_000_000, b"b")
        look = "compare numbers, not names: 'step-1000000' comes before 'step-999999' in the alphabet"
        checks.integer("newest of 999999 and 1000000", _pair(newest(folder))[0], 1_000_000, look=look)
        checks.equal("bytes of step 10, after the kill too", [first[1], after[1]], [b"ten!" * 50] * 2)
        checks.true("bytes of step 15", again[1] == BIG, look="all of the bytes, from the first")
        events = _order(answer, folder)
    checks.true(
        "all bytes are on the disk before the file gets its name",
        events[:2] == [len(SMALL), "renamed"],
        look="file.flush(), then os.fsync(file.fileno()), then the rename: after a power cut a name can be "
        f"there whose bytes are not. Seen: {_told(events)}",
    )


def _why_not_10(step: Any, names: list[str]) -> str:
    """Why step 5 came out as the newest: names that were compared as text, or another end of the list."""
    if step != 5:
        return "the highest step is the number in the name of one of the two files"
    five, ten = (next((n for n in names if re.fullmatch(rf"step-0*{of}\D*", n)), "") for of in (5, 10))
    if ten and ten < five:
        return (
            f"'{five}' sorts after '{ten}' as text, since '5' comes after '1'. Write six digits, and "
            "take the max of the numbers, int(...) of each, not of the names"
        )
    return (
        "'5' is more than '10' as text, since '5' comes after '1'. Take the max of the numbers, int(...) of "
        "each; the first file of a folder, or the lowest, is not the newest either"
    )


def _nothing_there(newest: Any, folder: Path) -> None:
    """The first start of all: there is no checkpoint yet."""
    look = "\nWhere to look: give None there, so that a first start begins at step 0"
    try:
        given = newest(folder)
    except (ValueError, IndexError, FileNotFoundError, NotADirectoryError) as error:
        raise CheckFailed(
            f"newest raised {type(error).__name__} for an empty folder: {error}.{look}; max of nothing and "
            "the last of nothing are errors, so look first whether there is a checkpoint."
        ) from error
    if given is not None:
        raise CheckFailed(f"newest gave {given!r} for an empty folder.{look}.")


def _told(events: list[Any]) -> str:
    said = [one if isinstance(one, str) else f"fsync of {one:,} of {len(SMALL):,} bytes" for one in events]
    return ", ".join(said) or "no fsync, no rename"


def _final(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("step-*")]


def _pair(given: Any) -> tuple[Any, Any]:
    if given is ...:
        raise ToDo("newest gave ...")
    if given is None:
        raise CheckFailed("newest gave None, but there is a checkpoint.\nWhere to look: what it globs for.")
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise CheckFailed(f"newest gave {type(given).__name__}: give (step, bytes).")
    return given[0], bytes(given[1]) if isinstance(given[1], bytes | bytearray) else given[1]


def _killed_half_way(answer: Any, folder: Path) -> None:
    """Let the kernel kill a process that has written half of its bytes."""
    from dtlab import RankError, launch

    try:
        launch(_write_and_die, 1, answer, folder, timeout=30, echo=False)
    except RankError as error:
        if error.reports[0].outcome != "killed":
            raise
    else:
        raise CheckFailed("save returned although half of the bytes could not be written: hand errors on.")


def _write_and_die(answer: Any, folder: Path) -> None:
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # a file beyond the limit ends the process, in the write
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(BIG) // 2, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    answer(folder, 15, BIG)


def _order(answer: Any, folder: Path) -> list[Any]:
    """Bytes on the disk at each fsync of a file, and the rename, in the order in which they happen."""
    events: list[Any] = []
    with _watched(events):
        answer(folder, 1_000_001, SMALL)
    return events


@contextmanager
def _watched(events: list[Any]) -> Iterator[None]:
    kept = {
        name: getattr(os, name) for name in ("fsync", "fdatasync", "rename", "replace") if hasattr(os, name)
    }

    def pushed(name: str) -> Any:
        def call(file: Any) -> Any:
            number = file if isinstance(file, int) else file.fileno()
            with suppress(OSError):
                status = os.fstat(number)
                if status.st_mode & 0o170000 == 0o100000:  # a file, not a folder
                    events.append(status.st_size)
            return kept[name](file)

        return call

    def renamed(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            events.append("renamed")
            return kept[name](*arguments, **named)

        return call

    try:
        for name in kept:
            setattr(os, name, pushed(name) if name.endswith("sync") else renamed(name))
        yield
    finally:
        for name, function in kept.items():
            setattr(os, name, function)
