"""Executes notebooks under nbval as CI does, and prints what each took.

- One notebook after the other (or `jobs` at a time, each under a pytest of its own), each in a fresh kernel;
  only cells tagged `nbval-check-output` are compared, and only in solutions. Solutions run in strict mode: a
  check that is still to do fails.
- A notebook that executed no code cell, or finished faster than a kernel can start, fails: something that
  does nothing must not look green.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from dtlab.course.build import CELL_TIMEOUT_SECONDS, course_environment
from dtlab.course.offline import offline_command
from dtlab.course.source import built_notebooks, lessons, notebooks_root
from dtlab.errors import UserError

SOLUTION_LIMIT_SECONDS = 30.0
LEARNER_MEAN_LIMIT_SECONDS = 10.0
KERNEL_START_SECONDS = 0.2  # no kernel starts and stops faster than this


def run(
    numbers: Iterable[str] = (),
    *,
    learner: bool = True,
    solutions: bool = True,
    no_network: bool = False,
    limits: bool = False,
    jobs: int = 1,
    root: Path | None = None,
) -> int:
    """Run the notebooks of these lessons (all when none is named); 0 when all passed, else 1.

    With `limits=True`, a solution over 30 s or learners' notebooks over 10 s on average fail too; otherwise
    that is only printed. `jobs`: notebooks at a time; more than one makes the whole faster and each slower.
    Raises UserError when a notebook is not built, and for less than one job.
    """
    if jobs < 1:
        raise UserError(f"jobs: {jobs}; give 1 or the number of notebooks to run at a time")
    problems: list[str] = []
    learners, solved = _notebooks(tuple(numbers), root or notebooks_root())
    if learner or not solved:
        problems += _run_kind("learner", learners, no_network, limits, jobs)
    if solutions and solved:
        problems += _run_kind("solution", solved, no_network, limits, jobs)
    print("\n".join(problems) or "all notebooks passed")
    return 1 if problems else 0


def _notebooks(numbers: tuple[str, ...], root: Path) -> tuple[list[Path], list[Path]]:
    """The learners' notebooks and the solutions of these lessons; in a copy for learners there are none."""
    if (root / "src").is_dir():
        chosen = lessons(numbers, root)
        if not chosen:
            raise UserError("no lesson to run: notebooks/src holds no NN_slug.py")
        return [lesson.learner_path for lesson in chosen], [lesson.solution_path for lesson in chosen]
    there = {path.name[:2]: path for path in built_notebooks(root)}
    unknown = [number for number in numbers if number[:2].zfill(2) not in there]
    if unknown or not there:
        have = ", ".join(there) or "none"
        raise UserError(
            f"lesson {' '.join(unknown) or 'none'!r} has no notebook in {root}; there are: {have}"
        )
    wanted = {number[:2].zfill(2) for number in numbers} or set(there)
    return [path for number, path in there.items() if number in wanted], []


def _run_kind(kind: str, paths: list[Path], no_network: bool, limits: bool, jobs: int) -> list[str]:
    for path in paths:
        if not path.is_file():
            raise UserError(
                f"{path.name} ({kind}) is not built; run: python -m dtlab.course build {path.name[:2]}"
            )
    with tempfile.TemporaryDirectory() as scratch:
        if jobs == 1:
            records, code = run_nbval(paths, kind == "solution", no_network, Path(scratch))
        else:
            records, code = _run_at_once(jobs, paths, kind == "solution", no_network, Path(scratch))
    problems = guard_problems(kind, paths, records)
    if code != 0 and not problems:
        problems = [f"pytest ended with code {code} on the {kind} notebooks; its report is above"]
    over = _print_seconds(kind, paths, records)
    return problems + (over if limits else [])


def _run_at_once(
    jobs: int, paths: list[Path], strict: bool, no_network: bool, scratch: Path
) -> tuple[dict[str, dict[str, Any]], int]:
    """`run_nbval` for each notebook alone, `jobs` of them at a time; the output of each is printed whole."""

    def alone(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
        own = scratch / path.stem
        own.mkdir()
        with (own / "output").open("w+", encoding="utf-8") as output:
            result = run_nbval([path], strict, no_network, own, output)
            output.seek(0)
            text = output.read()
        print(text, end="", flush=True)
        return result

    with ThreadPoolExecutor(jobs) as threads:
        results = list(threads.map(alone, paths))
    records = {name: record for found, _ in results for name, record in found.items()}
    return records, max(code for _, code in results)


def run_nbval(
    paths: list[Path], strict: bool, no_network: bool, scratch: Path, output: TextIO | None = None
) -> tuple[dict[str, dict[str, Any]], int]:
    """Run nbval on these notebooks; returns a record by notebook name, and pytest's exit code.

    Its output goes to this process's, or to the file `output`.
    """
    record = scratch / "record.json"
    options = ["no:python", "no:cacheprovider", "dtlab.course.nbval_guard"]
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(paths[0].parent)),
        *(part for option in options for part in ("-p", option)),
        *("--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={CELL_TIMEOUT_SECONDS}"),
        *map(str, paths),
    ]
    environment = course_environment(strict, scratch / "progress.json")
    environment["DTLAB_NBVAL_RECORD"] = str(record)
    left_by_kernels = scratch / "tmp"  # nbval kills a kernel that is done: it removes no folder of its own
    left_by_kernels.mkdir()
    environment["TMPDIR"] = str(left_by_kernels)
    if no_network:
        command, extra, way = offline_command(command, scratch)
        environment.update(extra)
        print(f"network cut by {way}", flush=True, file=output)
    code = subprocess.run(
        command, env=environment, check=False, stdout=output, stderr=output and subprocess.STDOUT
    ).returncode
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    return {Path(name).name: value for name, value in found.items()}, code


def guard_problems(kind: str, paths: list[Path], records: dict[str, dict[str, Any]]) -> list[str]:
    """Failed notebooks, and those that did nothing: no code cell executed, or no time passed."""
    problems = []
    for path in paths:
        record = records.get(path.name, {"seconds": 0.0, "executed": 0, "failed": 0})
        if record["failed"]:
            problems.append(f"{kind} {path.name}: {record['failed']} cells failed")
        elif not record["executed"]:
            problems.append(f"{kind} {path.name}: executed no code cell")
        elif record["seconds"] < KERNEL_START_SECONDS:
            problems.append(f"{kind} {path.name}: finished in no time ({record['seconds']:.2f} s)")
    return problems


def _print_seconds(kind: str, paths: list[Path], records: dict[str, dict[str, Any]]) -> list[str]:
    over, seconds = [], []
    for path in paths:
        record = records.get(path.name)
        if record is None:
            continue
        seconds.append(record["seconds"])
        late = kind == "solution" and record["seconds"] > SOLUTION_LIMIT_SECONDS
        if late:
            over.append(
                f"{kind} {path.name}: {record['seconds']:.1f} s, the limit is {SOLUTION_LIMIT_SECONDS:g} s"
            )
        print(
            f"{kind:<8}  {path.name:<40} {record['executed']:>3} cells {record['seconds']:>6.1f} s"
            + (f"  over {SOLUTION_LIMIT_SECONDS:g} s" if late else "")
        )
    mean = sum(seconds) / len(seconds) if seconds else 0.0
    if kind == "learner" and mean > LEARNER_MEAN_LIMIT_SECONDS:
        over.append(
            f"learner notebooks: {mean:.1f} s on average, the limit is {LEARNER_MEAN_LIMIT_SECONDS:g} s"
        )
    print(f"{kind:<8}  {len(seconds)} notebooks, {sum(seconds):.1f} s, {mean:.1f} s on average")
    return over
