"""The project as learners get it: everything that a lesson needs, and nothing that answers it.

Left out are the solutions, the sources of the lessons (which hold them), the tests with their wrong answers,
and what is for authors. `make lab`, `make test` and `python -m dtlab.course run` work in the copy. What is
copied is named here, so that whatever else lies in the instructor's folder stays there.

Pages and the Makefile mark what makes sense only in the whole project: lines from `<!-- not for learners -->`
(or `# not for learners`) to `<!-- end -->` (`# end`) are left out.

Hints stay: a reader asks for them. So does the package, whose own parts do what some exercises build by hand.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from dtlab.course.build import learner_notebook, write_notebook
from dtlab.course.source import lessons, notebooks_root
from dtlab.errors import UserError
from dtlab.files import appears_whole, require_writable_folder

__all__ = ["export"]

FILES = (
    ".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "data/README.md", "environment.yml",
    "notebooks/pytest.ini", "pyproject.toml", "requirements.lock",
)  # fmt: skip
FOLDERS = ("benchmarks", "docs", "dtlab", "examples", "tools")
LEFT_OUT = ("docs/coverage.md", "dtlab/course/mutants.py")
NOTE = """> This copy is for learners: without solutions, sources of the lessons, and tests.
> `make test` runs its notebooks.

"""
_MARKED = re.compile(r"^(?:<!-- |# )not for learners(?: -->)?\n.*?^(?:<!-- |# )end(?: -->)?\n+", re.S | re.M)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")


def export(folder: Path, *, root: Path | None = None) -> int:
    """Write the learners' copy of the project around `root` (its `notebooks/`); returns the number of files.

    The notebooks are made from their sources, so they are never behind them.

    Raises:
        UserError: `folder` holds something already or cannot be written; this is no whole checkout.
    """
    root = notebooks_root() if root is None else root
    project = root.parent
    require_writable_folder(folder, "learners")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"learners = {str(folder)!r}: is not empty; give a new folder")
    made = lessons((), root)
    with appears_whole(folder, "learners") as beside:
        for path in _copied(project):
            target = beside / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project / path, target)
        for lesson in made:
            write_notebook(learner_notebook(lesson), beside / "notebooks" / lesson.learner_path.name)
        for page in beside.rglob("*.md"):
            text = _for_learners(page.read_text("utf-8"))
            page.write_text(_without_dead_links(text, page.parent), encoding="utf-8")
        makefile = beside / "Makefile"
        makefile.write_text(_for_learners(makefile.read_text("utf-8")), encoding="utf-8")
        readme = beside / "README.md"
        title, _, rest = readme.read_text("utf-8").partition("\n\n")
        readme.write_text(f"{title}\n\n{NOTE}{rest}", encoding="utf-8")
        return sum(path.is_file() for path in beside.rglob("*"))


def _copied(project: Path) -> Iterator[Path]:
    """Paths inside the project that learners get, notebooks aside."""
    for name in FILES:
        if not (project / name).is_file():
            raise UserError(f"learners: {project} has no {name}; run this in a whole checkout of the course")
        yield Path(name)
    for name in FOLDERS:
        for path in sorted((project / name).rglob("*")):
            inner = path.relative_to(project)
            is_hidden = any(part.startswith(".") or part == "__pycache__" for part in inner.parts)
            if path.is_file() and not is_hidden and inner.as_posix() not in LEFT_OUT:
                yield inner


def _for_learners(text: str) -> str:
    """The text without its marked parts and the empty lines after them.

    >>> _for_learners("one\\n\\n# not for learners\\ntwo\\n# end\\n\\nthree\\n")
    'one\\n\\nthree\\n'
    """
    return _MARKED.sub("", text).rstrip("\n") + "\n"


def _without_dead_links(text: str, folder: Path) -> str:
    """Links to what the copy lacks become their words.

    >>> _without_dead_links("see [the table](no/such.md)", Path("."))
    'see the table'
    """

    def words(link: re.Match[str]) -> str:
        return link[0] if (folder / link[2]).exists() else link[1]

    return _LINK.sub(words, text)
