"""Check of lesson 11: one process prepares a folder, which appears whole or not at all.

What a race does is not left to chance: the lock that the answer gets stands in for the other process, and
builds the folder while the answer waits for it. Then four real ranks race for a real lock.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons.on_ranks import on_ranks, require_function

RANKS = 4
PATIENCE = 15  # seconds
PARTS = ("0.npy", "1.npy", "2.npy")


@exercise(
    "11-prepare",
    todo="return if the folder is there; else take the lock, look again, build beside the folder and rename",
    hints=(
        "Who waited for the lock finds the work done: so look twice, before the lock and behind it. Nobody "
        "may see half a folder under its final name: so it gets that name last.",
        "if folder.exists(): return False; with lock(): look again; beside = folder.with_name(folder.name + "
        "'.building'); shutil.rmtree(beside, ignore_errors=True) takes away what a killed builder left; "
        "beside.mkdir(); build(beside); os.rename(beside, folder). Then return True.",
    ),
    references=("dtlab.data.prepare.prepare",),
)
def prepared(checks: Checks, answer: Any) -> None:
    """One process step by step, with counts; then four ranks at once."""
    require_function(answer)
    with tempfile.TemporaryDirectory() as place:
        first = _Scene(Path(place) / "first")
        said = _given(_first(answer, first))
        _counts(checks, first)
        again = _given(answer(first.folder, first.build, first.lock))
        checks.integer("builds when the folder is there", first.builds - 1, 0, look="look before you build")
        _late(checks, answer, Path(place) / "late")
        again_after = _after_a_failure(checks, answer, Path(place) / "failed")
        answers = on_ranks(RANKS, _race, answer, str(Path(place) / "race"), timeout=2 * PATIENCE, look=_WAIT)
    ran = [built for _, built, _ in answers]
    early = sum(files is None for _, _, files in answers)
    checks.integer("ranks that went on before the folder was there", early, 0, look=_WAIT)
    checks.integer(f"builds of {RANKS} ranks that start together", sum(ran), 1, look=_WAIT)
    for rank, (_, _, files) in enumerate(answers):
        checks.integer(f"files that rank {rank} then finds", len(files or []), len(PARTS))
    checks.passed[-RANKS:] = [f"files that every rank then finds: {len(PARTS)}"]
    checks.true(
        "it says True where it built, False where not", said and not again, look="return True or False"
    )
    right = [bool(told) for told, _, _ in answers] == [bool(built) for built in ran]
    checks.true("so on every rank", right, look="True on the rank that built, False on the others")
    checks.equal(
        "files after a build that failed and one that did not",
        again_after,
        sorted(PARTS),
        look="what the failed one left is still there: build into an empty folder",
    )


_WAIT = "who comes second waits at `with lock():`, and looks again behind it"


def _first(answer: Any, scene: _Scene) -> Any:
    """The first call; a lock that was used without being called is told as that."""
    try:
        return answer(scene.folder, scene.build, scene.lock)
    except (TypeError, AttributeError) as error:
        said = str(error)
        if "context manager protocol" not in said and not ("'method'" in said and "attribute" in said):
            raise
        raise CheckFailed(
            f"your answer raised {type(error).__name__}: {error}.\nWhere to look: lock is a function; each "
            "call gives what stands behind `with`: `with lock():`"
        ) from error


class _Scene:
    """A folder to prepare, and a lock and a build that note what the answer does."""

    def __init__(self, folder: Path, meanwhile: Callable[[], None] = lambda: None) -> None:
        folder.parent.mkdir(exist_ok=True)
        self.folder, self.meanwhile = folder, meanwhile
        self.builds = self.entered = self.seen_too_early = self.unlocked = 0
        self.whole_at_unlock = 1
        self.held = False
        self.place: Path | None = None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        self.entered += 1
        self.meanwhile()  # what another process does while this one waits
        self.held = True
        try:
            yield
        finally:
            self.held = False
            self.whole_at_unlock = int((self.folder / PARTS[-1]).exists())

    def build(self, path: Any) -> None:
        self.builds += 1
        self.place = Path(path)
        self.unlocked += not self.held
        for name in PARTS:
            if not self.place.is_dir():
                raise CheckFailed(
                    f"build was called with {describe(path)}, which is no folder: make it first."
                )
            (self.place / name).write_text(name)
            self.seen_too_early += self.folder.exists()


def _counts(checks: Checks, scene: _Scene) -> None:
    checks.integer("builds of one process alone", scene.builds, 1, look="call build(path) once")
    checks.integer("times that it took the lock", scene.entered, 1, look="with lock(): around the whole work")
    checks.integer(
        "files written while the lock was free", scene.unlocked, 0, look="build inside of `with lock():`"
    )
    checks.integer(
        "files after which half a folder stood under its final name",
        scene.seen_too_early,
        0,
        look="a rank that looks now takes it for complete: build in a folder beside it, rename at the end",
    )
    checks.integer(
        "whole folders when the lock was given back",
        scene.whole_at_unlock,
        1,
        look="rename inside of the lock, or the next one builds again",
    )
    if scene.place is not None and scene.place.parent != scene.folder.parent:
        raise CheckFailed(
            f"built in {scene.place.parent.name!r}, not beside the folder: os.rename works inside of one "
            "file system only.\nWhere to look: folder.with_name(...)"
        )


def _late(checks: Checks, answer: Any, folder: Path) -> None:
    """While the answer waits for the lock, another process builds the folder."""

    def other() -> None:
        beside = folder.with_name("other")
        beside.mkdir()
        for name in PARTS:
            (beside / name).write_text(name)
        beside.rename(folder)

    scene = _Scene(folder, other)
    error = None
    try:
        said = answer(folder, scene.build, scene.lock)
    except CheckFailed:
        raise
    except Exception as caught:
        error = caught
    checks.integer(
        "builds of one that waited while another process built",
        scene.builds,
        0,
        look="the folder was not there before the lock and is there behind it: look again inside",
    )
    if error is not None:
        raise error
    if said:
        raise CheckFailed("it says that it built the folder, and another process did: return False there.")


def _after_a_failure(checks: Checks, answer: Any, folder: Path) -> list[str]:
    """The files that a second call leaves, after a first whose build failed halfway."""

    def fails(path: Any) -> None:
        (Path(path) / "torn.npy").write_text("half")
        raise _DiskFull

    scene = _Scene(folder)
    reached = 0
    try:
        answer(folder, fails, scene.lock)
    except _DiskFull:
        reached = 1
    look = "do not catch it, or raise it again: otherwise nobody knows that there is no data"
    checks.integer("errors of build that reach the caller", reached, 1, look=look)
    checks.integer(
        "folders under the final name after a build that failed",
        int(folder.exists()),
        0,
        look="the final name comes last, by os.rename",
    )
    try:
        answer(folder, scene.build, scene.lock)
    except FileExistsError:
        raise CheckFailed(
            "after a build that failed, the next call found its folder and gave up with FileExistsError.\n"
            "Where to look: take away what is left beside: shutil.rmtree(beside, ignore_errors=True)"
        ) from None
    checks.integer("builds after one that failed", scene.builds, 1, look="nothing is there, so build")
    return sorted(path.name for path in folder.iterdir())


class _DiskFull(OSError):
    pass


def _given(said: Any) -> bool:
    if said is None or said is ...:
        raise ToDo("prepare_once gave None; is a return missing?" if said is None else "...")
    return bool(said)


def _race(answer: Any, place: str) -> tuple[Any, bool, list[str] | None]:
    """What the answer says on this rank, whether it built here, and the files that it finds when it returns.

    A build does not end before every other rank waits for the lock or has returned: so who does not wait
    finds nothing, and not by chance.
    """
    from dtlab import world
    from dtlab.data.prepare import lock

    with world() as w:
        home = Path(place)
        home.mkdir(exist_ok=True)
        scene = _Scene(home / "made")

        def arrived() -> None:
            (home / f"arrived-{w.rank}").touch()

        @contextlib.contextmanager
        def noted_lock() -> Iterator[None]:
            arrived()
            with lock(home / ".lock"):
                yield

        def build(path: Any) -> None:
            scene.build(path)
            last = time.monotonic() + PATIENCE
            while len(list(home.glob("arrived-*"))) < w.size and time.monotonic() < last:
                time.sleep(0.005)

        w.barrier()
        said = answer(scene.folder, build, noted_lock)
        files = sorted(path.name for path in scene.folder.iterdir()) if scene.folder.exists() else None
        arrived()
        return said, scene.builds > 0, files
