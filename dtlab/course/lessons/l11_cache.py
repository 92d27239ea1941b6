"""Check of lesson 11: a cache on disk whose key is the content, which counts how often it made an entry."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons.on_ranks import require_function

HOUR, DAY = 3600.0, 24 * 3600.0


@exercise(
    "11-cache",
    todo="hash the columns and the content of each file into a key, make the entry if it is missing or too "
    "old, let it appear by rename, and load it mapped",
    hints=(
        "Which things decide what make() gives? The content of the files, their order and the columns. All "
        "of them belong in the key, and nothing else: not a name, not a date.",
        "digest = hashlib.blake2b(repr(list(columns)).encode(), digest_size=8); update it with "
        "hashlib.blake2b(path.read_bytes()).digest() of each file. "
        "entry = folder / f'{digest.hexdigest()}.npy'. Too old: time.time() - "
        "entry.stat().st_mtime > max_age. np.save into an open file beside it, "
        "os.replace, in a finally beside.unlink(missing_ok=True), and np.load(entry, mmap_mode='r').",
    ),
    references=("dtlab.data.cache.Cache",),
)
def cached(checks: Checks, answer: Any) -> None:
    """A sequence of questions; how often each made the entry, then what came."""
    require_function(answer)
    with tempfile.TemporaryDirectory() as place:
        asked = _Asked(answer, Path(place))
        _sequence(checks, asked)
        _names_and_joints(checks, asked)
        _new_processes(checks, asked)
        _age(checks, asked)
        _full_disk(checks, asked)
        for what, got, expected in asked.answers:
            checks.equal(f"rows, {what}", got, expected, look="return what make() gave for this very key")
        checks.passed[:] = [line for line in checks.passed if not line.startswith("rows, ")]
        checks.passed.append(f"the rows of {len(asked.answers)} answers")
        checks.true(
            "the entry is mapped, so that the ranks of a host share its pages",
            asked.mapped,
            look="np.load(entry, mmap_mode='r'), also for what was made a moment ago",
        )


def _sequence(checks: Checks, asked: _Asked) -> None:
    """The questions whose key changes, and those whose key does not."""
    asked.write(0, b"monday")
    asked.write(1, b"tuesday")
    asked.expect(checks, 1, "a first question", look="make() gives the rows; call it once and keep them")
    asked.expect(checks, 0, "the same again", look="the entry is there: load it")
    asked.touch(0)
    asked.expect(checks, 0, "a file touched, its content as before", look=_CONTENT)
    asked.write(0, b"sunday")  # as long as before, and made to look as old
    asked.expect(checks, 1, "other content, with size and date as before", look=_CONTENT)
    asked.write(0, b"monday")
    asked.expect(
        checks, 0, "the old content back again", look="an entry of another key stays: the key is its name"
    )
    asked.write(1, b"tues.day")
    asked.expect(checks, 1, "another second file", look="the content of every file belongs in the key")
    asked.columns = ["user", "price"]
    asked.expect(checks, 1, "another column list", look="the columns decide what make() gives: into the key")
    asked.columns = ["price", "user"]
    asked.expect(checks, 1, "the columns in another order", look="their order is that of the array's columns")
    asked.paths.reverse()
    asked.expect(checks, 1, "the files in another order", look="their order is that of the rows")
    asked.paths.reverse()
    asked.columns = ["user", "item"]
    asked.expect(checks, 0, "the first question once more", look="its entry is still there")


def _names_and_joints(checks: Checks, asked: _Asked) -> None:
    """The same content under other names; then pairs that only a joint between two pieces tells apart."""
    asked.rename()
    look = "no name and no folder of a file belongs in the key, its content alone"
    asked.expect(checks, 0, "the same files under other names", look=look)
    asked.write(0, b"ab")
    asked.write(1, b"c")
    asked.expect(checks, 1, "files 'ab' and 'c'", look=_CONTENT)
    asked.write(0, b"a")
    asked.write(1, b"bc")
    look = "joined, the two are one text: hash each file for itself and put the digests into the key"
    asked.expect(checks, 1, "files 'a' and 'bc', after 'ab' and 'c'", look=look)
    asked.columns = ["a", "bc"]
    asked.expect(checks, 1, "columns 'a' and 'bc'", look="the columns decide what make() gives: into the key")
    asked.columns = ["ab", "c"]
    look = "joined, the two lists are one text: repr(list(columns)) keeps them apart"
    asked.expect(checks, 1, "columns 'ab' and 'c', after 'a' and 'bc'", look=look)
    asked.columns = ["user", "item"]


def _new_processes(checks: Checks, asked: _Asked) -> None:
    """The same question in processes whose hash() differs: one of the two differs from this one's."""
    makes = sum(_makes_in_a_new_process(asked, seed) for seed in ("1", "2"))
    look = (
        "the entry is in the folder, so its name came out differently: hash() of a text is another number in "
        "each process, hashlib's digests are not"
    )
    checks.integer("calls of make() for the same question in two new processes", makes, 0, look=look)


def _makes_in_a_new_process(asked: _Asked, hash_seed: str) -> int:
    import cloudpickle

    script = "import sys, cloudpickle\nwork, *given = cloudpickle.load(sys.stdin.buffer)\nprint(work(*given))"
    environ = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    given = cloudpickle.dumps((_makes, asked.answer, asked.folder, asked.paths, asked.columns, asked.rows()))
    done = subprocess.run([sys.executable, "-c", script], input=given, capture_output=True, env=environ,
                          timeout=60)  # fmt: skip
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it died"]
        raise CheckFailed(
            f"in a new process the answer raised {last[0]}.\nWhere to look: what it reads that only this "
            "process has."
        )
    return int(done.stdout.split()[-1])


def _makes(answer: Any, folder: Path, paths: list[Path], columns: list[str], rows: Any) -> int:
    """How often the answer calls make(), in this process."""
    made: list[Any] = []

    def make() -> Any:
        made.append(rows)
        return rows

    answer(folder, list(paths), list(columns), make)
    return len(made)


_CONTENT = "the key is the content, path.read_bytes(): neither name nor date nor size"


def _age(checks: Checks, asked: _Asked) -> None:
    """Entries of some age, with a limit of a day."""
    asked.age_entries(23 * HOUR)
    asked.expect(checks, 0, "an entry of 23 h, a day allowed", max_age=DAY, look="it is not too old yet")
    asked.age_entries(25 * HOUR)
    asked.expect(checks, 0, "an entry of 25 h, no limit", look="max_age=None keeps entries for ever")
    asked.version += 1
    look = "time.time() - entry.stat().st_mtime is its age in seconds; older than max_age: make it anew"
    asked.expect(checks, 1, "an entry of 25 h, a day allowed", max_age=DAY, look=look)
    look = "the new entry has the new date: was it written again?"
    asked.expect(checks, 0, "the same once more", max_age=DAY, look=look)


def _full_disk(checks: Checks, asked: _Asked) -> None:
    """An entry whose writing fails halfway: what is left, what was there before, and asked for again."""
    asked.age_entries(25 * HOUR)
    before = asked.files()
    asked.fail(DAY)
    gone = len(before - asked.files())
    look = "os.replace takes the place of the old entry; until then it stays: no unlink before make()"
    checks.integer("old entries lost by making a new one that failed", gone, 0, look=look)
    asked.columns = ["item"]
    asked.fail(None)
    left = len(asked.files() - before)
    try:
        made, got = asked.ask(None)
    except (ValueError, EOFError, OSError):
        raise CheckFailed(
            "writing an entry failed halfway (the disk was full), and the next question took the torn file "
            "for an entry.\nWhere to look: write beside it and give it its name at the end, by os.replace"
        ) from None
    look = "nothing whole is there, so it must be made"
    checks.integer("makes after a write that failed", made, 1, look=look)
    look = "the disk stays full of them: in a finally, beside.unlink(missing_ok=True)"
    checks.integer("files left behind by writes that failed", left, 0, look=look)
    asked.answers.append(("after a write that failed", got, asked.rows()))


class _Asked:
    """The answer with its files, columns and cache folder; counts the calls of make()."""

    def __init__(self, answer: Any, place: Path) -> None:
        self.answer = answer
        self.folder = place / "cache"
        self.folder.mkdir()
        self.paths = [place / "0.log", place / "1.log"]
        self.columns = ["user", "item"]
        self.answers: list[tuple[str, Any, Any]] = []
        self.version, self.full, self.mapped = 0, False, True
        self._made = 0

    def write(self, number: int, content: bytes) -> None:
        """Write a file and give it a date of long ago, the same each time."""
        self.paths[number].write_bytes(content)
        os.utime(self.paths[number], (1e9, 1e9))

    def rename(self) -> None:
        """Give the files other names in another folder."""
        place = self.folder.parent / "moved"
        place.mkdir()
        self.paths = [path.rename(place / f"part-{9 - number}.txt") for number, path in enumerate(self.paths)]

    def files(self) -> set[Path]:
        """What is in the cache's folder."""
        return {path for path in self.folder.rglob("*") if path.is_file()}

    def fail(self, max_age: float | None) -> None:
        """Ask while the disk is full."""
        self.full = True
        try:
            self.ask(max_age)
        except OSError as error:
            if "disk is full" not in str(error):
                raise
        except (ValueError, EOFError):
            pass  # it tried to load what it could not write
        self.full = False

    def touch(self, number: int) -> None:
        os.utime(self.paths[number], (1.1e9, 1.1e9))

    def age_entries(self, seconds: float) -> None:
        """Let everything in the cache have been written so many seconds ago."""
        then = time.time() - seconds
        for path in self.folder.rglob("*"):
            os.utime(path, (then, then))

    def rows(self) -> Any:
        """What make() gives, by content, columns and their orders, and by a fact that no key sees."""
        import numpy as np

        content = b"".join(path.read_bytes() for path in self.paths)
        return np.array([[float(byte) + len(name) * 1000 + self.version * 10_000 + ord(name[0]) * 1e6
                          for name in self.columns] for byte in content])  # fmt: skip

    def ask(self, max_age: float | None) -> tuple[int, Any]:
        """(calls of make(), a copy of what came)."""
        import numpy as np

        def make() -> Any:
            self._made += 1
            return _Unwritable() if self.full else self.rows()

        before = self._made
        named = {} if max_age is None else {"max_age": max_age}
        got = self.answer(self.folder, list(self.paths), list(self.columns), make, **named)
        if got is None or got is ...:
            raise ToDo("cached gave None; is a return missing?" if got is None else "...")
        if not isinstance(got, np.ndarray):
            raise CheckFailed(f"cached gave {describe(got)}: give the array.")
        self.mapped &= isinstance(got, np.memmap)
        return self._made - before, np.array(got)

    def expect(
        self, checks: Checks, makes: int, what: str, *, look: str, max_age: float | None = None
    ) -> None:
        made, got = self.ask(max_age)
        checks.integer(f"calls of make() for {what}", made, makes, look=look)
        self.answers.append((what, got, self.rows()))


class _Unwritable:
    """Rows that cannot be written to the end."""

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise OSError("the disk is full")
