"""Make a new project: its files appear together or not at all (``dtlab new NAME``)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from string import Template

from dtlab.errors import UserError, one_line
from dtlab.files import appears_whole
from dtlab.scaffold.project.make_data import write
from dtlab.scaffold.texts import TEXTS

__all__ = ["create"]

SCRIPTS = {
    "train.py": "code/train.py",
    "model.py": "code/model.py",
    "make_data.py": "code/make_data.py",
    "test_train.py": "tests/test_train.py",
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")
_MOST = 40  # with the time that is put behind it, a SageMaker job's name has at most 63


def create(name: str, *, within: Path = Path(".")) -> Path:
    """Make the folder ``within/name`` with scripts, configuration, job, test and a small Parquet file.

    Raises:
        UserError: a name that no folder and job may have, something of that name is there, or the place
            cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     sorted(path.name for path in create("sales", within=Path(place)).iterdir())
    ['.gitignore', 'README.md', 'code', 'data', 'job.toml', 'pytest.ini', 'tests']
    """
    shown = f"name = {one_line(name, 60)!r}"
    if not _NAME.fullmatch(name) or len(name) > _MOST:
        raise UserError(
            f"{shown}: give letters and digits, single '-' or '_' between, {_MOST} at most, such as sales"
        )
    folder = within / name
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{shown}: {folder} is there already; choose another name, or move it away")
    with appears_whole(folder, "name") as beside:
        for path, text in TEXTS.items():
            target = beside / path
            target.parent.mkdir(parents=True, exist_ok=True)
            filled = Template(text).substitute(name=name, job=name.replace("_", "-"))
            target.write_text(filled, encoding="utf-8")
        for source, path in SCRIPTS.items():
            (beside / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(__file__).with_name("project") / source, beside / path)
        write(beside / "data")
    return folder
