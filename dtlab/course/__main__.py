"""`dtlab course progress | report` for learners; `build | verify | run | export` for authors of lessons."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dtlab.errors import UserError

app = App(
    name="course", help="What you have solved; for authors: build, verify, run and export the notebooks."
)
AUTHORS = "For authors of lessons"


@app.command(group=AUTHORS)
def build(*lessons: str, learner_only: bool = False) -> int:
    """Build learner and solution notebooks from notebooks/src.

    Parameters
    ----------
    lessons
        Numbers such as 02; all when none is given.
    learner_only
        Do not execute and store the solutions.
    """
    from dtlab.course.build import build as build_notebooks
    from dtlab.course.build import summary

    for path, size in summary(build_notebooks(lessons, run=not learner_only)).items():
        print(f"{path}  {size / 1000:.0f} kB")
    return 0


@app.command(group=AUTHORS)
def verify(*lessons: str, execute: bool = False) -> int:
    """Compare the built notebooks with their sources, and check the rules for authors.

    Parameters
    ----------
    lessons
        Numbers such as 02; all when none is given.
    execute
        Also run the solutions again and compare the outputs of cells tagged nbval-check-output.
    """
    from dtlab.course.verify import verify as find_problems

    problems = find_problems(lessons, run=execute)
    print("\n".join(problems) or "notebooks are what their sources give")
    return 1 if problems else 0


@app.command(group=AUTHORS)
def run(
    *lessons: str,
    learner: bool = False,
    solutions: bool = False,
    no_network: Annotated[bool, Parameter(negative=())] = False,
    limits: Annotated[bool, Parameter(negative=())] = False,
    jobs: int = 1,
) -> int:
    """Execute notebooks under nbval; both kinds when neither is named.

    Parameters
    ----------
    lessons
        Numbers such as 02; all when none is given.
    learner
        Run the learners' notebooks.
    solutions
        Run the solution notebooks, in strict mode.
    no_network
        Cut the network, loopback stays up.
    limits
        Fail when a solution takes more than 30 s or the learners' notebooks more than 10 s on average.
    jobs
        Notebooks at a time. With more than one the whole takes less and each notebook more.
    """
    from dtlab.course.run import run as run_notebooks

    both = learner == solutions
    return run_notebooks(
        lessons,
        learner=learner or both,
        solutions=solutions or both,
        no_network=no_network,
        limits=limits,
        jobs=jobs,
    )


@app.command(group=AUTHORS)
def export(*lessons: str, nbgrader: Path | None = None, learners: Path | None = None) -> int:
    """Write the course to hand out: as assignments for nbgrader, or as a project without the solutions.

    Parameters
    ----------
    lessons
        Numbers such as 02, for nbgrader; all when none is given.
    nbgrader
        New folder for nbgrader: source notebooks with its metadata, and its configuration.
    learners
        New folder for the project without solutions, sources of lessons, and tests.
    """
    if nbgrader is None and learners is None:
        raise UserError("export: give --nbgrader DIR, or --learners DIR")
    if lessons and nbgrader is None:
        raise UserError(
            f"lessons = {' '.join(lessons)}: only with --nbgrader; --learners takes the whole course"
        )
    if nbgrader is not None:
        from dtlab.course.nbgrader import export as export_assignments

        written = export_assignments(nbgrader, lessons)
        print("\n".join(map(str, written)))
        print(f"next: cd {nbgrader} && nbgrader generate_assignment {written[0].stem}")
    if learners is not None:
        from dtlab.course.handout import export as export_handout

        print(f"{export_handout(learners)} files in {learners}; next: cd {learners} && make lab")
    return 0


@app.command
def progress() -> int:
    """Show what you have solved, and the file that keeps it."""
    from dtlab.course.progress import progress_file, progress_table

    progress_table()
    print(f"kept in {progress_file()}; the variable DTLAB_PROGRESS names another file")
    return 0


@app.command
def report(output: str = "course-report.md") -> int:
    """Write a completion report: what was checked of each lesson, when and by which version.

    Parameters
    ----------
    output
        File to write, .md or .html; the same as JSON is written beside it.
    """
    from dtlab.course.completion import summary, write_report

    made, files = write_report(output)
    print(summary(made))
    print(f"written: {', '.join(map(str, files))}")
    return 0


def main() -> None:
    """Run the command; a UserError is printed without a traceback and ends with code 2."""
    try:
        code = app()
    except UserError as error:
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
