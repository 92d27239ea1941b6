"""Rows of docs/coverage.md point at what exists: lesson, heading, name or command, test. Imports no torch."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "coverage.md"
COLUMNS = ("item", "it says", "verdict", "lived in", "done by", "shown by")
VERDICT = re.compile(r"(right|wrong|needs an assumption)(: \S.*)?")
LESSON = re.compile(r"\[(\d\d)\]\(([^)]+)\) (`+) ?(#{2,3} .+?) ?\3")
TEST = re.compile(r"\[`([\w/]+\.py)::(\w+)`\]\(([^)]+)\)")
NAME = re.compile(r"`(dtlab[.\w]*(?: [a-z]+)*)`")
FIRST_LINE = re.compile(r"Of (\d+) items of the sources, (\d+) have a part that is planned\.")
CLAIMS = {"S0": 63, "S3": 34, "S4": 36}  # rows that the sources give: a row that gets lost is noticed


def rows(text: str) -> list[dict[str, str]]:
    """The rows of all tables, without their headers and rules."""
    found = []
    for line in text.splitlines():
        if not line.startswith("| ") or line.startswith("| item "):
            continue
        cells = [cell.strip() for cell in line.strip("|\n").split(" | ")]
        assert len(cells) == len(COLUMNS), line
        found.append(dict(zip(COLUMNS, cells, strict=True)))
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_in(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """What the statements of a module or class define or import, by name."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def loaded_on_first_use(module: ast.Module) -> dict[str, str]:
    """Name to module, of the dictionaries of strings in a package's ``__init__``."""
    return {
        key.value: value.value
        for node in ast.walk(module)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
    }


@cache
def exists(dotted: str) -> bool:
    """Whether a dotted name is a module of dtlab or something that one defines."""
    path, parts = ROOT, dotted.split(".")
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    module = path / "__init__.py"
    if parts and (path / f"{parts[0]}.py").is_file():
        module = path / f"{parts.pop(0)}.py"
    if not parts:
        return module.is_file()
    home = loaded_on_first_use(tree(module)).get(parts[0])
    if home is not None:
        return exists(".".join([home, *parts]))
    node = names_in(tree(module).body).get(parts[0])
    return node is not None and (
        len(parts) == 1
        or (len(parts) == 2 and isinstance(node, ast.ClassDef) and parts[1] in names_in(node.body))
    )


@cache
def commands(file: Path = ROOT / "dtlab" / "cli.py") -> dict[str, str]:
    """The commands that a file names, each with the place of its function, or of the app that holds more."""
    found = {}
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "app.command":
            told = {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg == "name"}
            found[told["name"]] = ast.literal_eval(node.args[0])
    return found


def is_command(words: list[str]) -> bool:
    place = commands().get(words[0])
    if place is None or len(words) > 2:
        return False
    if len(words) == 1:
        return exists(place.replace(":", "."))
    module, _, app = place.partition(":")
    file = ROOT / f"{module.replace('.', '/')}.py"
    named = commands(file).get(words[1])
    if named is not None:
        return app == "app" and exists(named.replace(":", "."))
    function = names_in(tree(file).body).get(words[1].replace("-", "_"))
    return (
        app == "app"
        and isinstance(function, ast.FunctionDef)
        and "app.command" in map(ast.unparse, function.decorator_list)
    )


@cache
def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)}


@cache
def headings(lesson: Path) -> set[str]:
    lines = lesson.read_text(encoding="utf-8").splitlines()
    return {line[2:].strip() for line in lines if re.match(r"# #{2,3} ", line)}


def cell_faults(kind: str, cell: str) -> list[str]:
    """What is wrong with one cell of the last three columns."""
    if cell == "planned":
        return []
    parts = cell.split("; ")
    pattern = {"lived in": LESSON, "done by": NAME, "shown by": TEST}[kind]
    wrong = []
    for part in parts:
        match = pattern.fullmatch(part)
        if match is None:
            wrong.append(f"cannot be read: {part}")
        elif kind == "lived in":
            number, link, _, heading = match.groups()
            notebook = TABLE.parent / link
            source = ROOT / "notebooks" / "src" / f"{notebook.stem}.py"
            if not (notebook.is_file() and source.is_file() and notebook.name.startswith(number)):
                wrong.append(f"no such lesson: {link}")
            elif heading not in headings(source):
                wrong.append(f"no such heading in {source.name}: {heading}")
        elif kind == "done by":
            words = match[1].split(" ")
            if not (exists(words[0]) if len(words) == 1 else is_command(words[1:])):
                wrong.append(f"no such name or command: {match[1]}")
        else:
            file = ROOT / "tests" / match[1]
            if (TABLE.parent / match[3]).resolve() != file.resolve() or not file.is_file():
                wrong.append(f"no such file: {match[3]}")
            elif not match[2].startswith("test_") or match[2] not in functions_of(file):
                wrong.append(f"no such test in {match[1]}: {match[2]}")
    return wrong


def faults(text: str) -> list[str]:
    """All that is wrong with a table, a line each."""
    found, table = [], rows(text)
    for row in table:
        if not all(row.values()):
            found.append(f"{row['item']}: an empty cell")
        if not VERDICT.fullmatch(row["verdict"]):
            found.append(f"{row['item']}: no verdict: {row['verdict']}")
        for kind in COLUMNS[3:]:
            found += [f"{row['item']}: {fault}" for fault in cell_faults(kind, row[kind])]
    numbers = [row["item"] for row in table]
    expected = [f"{source}.{number + 1}" for source, count in CLAIMS.items() for number in range(count)]
    if numbers != expected:
        found.append(f"items are missing, doubled or out of order: {sorted(set(numbers) ^ set(expected))}")
    planned = sum("planned" in (row["lived in"], row["done by"], row["shown by"]) for row in table)
    first = FIRST_LINE.fullmatch(text.splitlines()[0])
    if first is None or [int(number) for number in first.groups()] != [len(table), planned]:
        found.append(f"first line: {len(table)} items, {planned} with a part that is planned")
    return found


def test_every_row_points_at_what_exists_and_the_planned_ones_are_counted():
    assert faults(TABLE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("## Look: what fills a card`", "## Look: what fills a cart`", "no such heading"),
        ("(../notebooks/01_why_distribute.ipynb)", "(../notebooks/01_why.ipynb)", "no such lesson"),
        ("`dtlab.cost.remedies.remedies`", "`dtlab.cost.remedies.remedy_of`", "no such name"),
        ("`dtlab.GlobalBatchSampler`", "`dtlab.GlobalSampler`", "no such name"),
        ("`dtlab ladder`", "`dtlab stairs`", "no such name or command"),
        ("`dtlab sagemaker rehearse`", "`dtlab sagemaker play`", "no such name or command"),
        ("::test_parts_add_up_to_the_step`", "::test_parts_add_up`", "no such test"),
        ("(../tests/unit/test_sampler.py)", "(../tests/unit/test_samples.py)", "no such file"),
        ("| `dtlab.data_parallel` |", "| later |", "cannot be read"),
        ("| `dtlab.data_parallel` |", "|  |", "an empty cell"),
        ("| right |", "| perhaps |", "no verdict"),
        ("have a part that is planned.", "are planned.", "first line"),
        ("| S0.2 |", "| S0.3 |", "missing, doubled or out of order"),
    ],
)
def test_a_wrong_cell_is_named(old, new, told):
    text = TABLE.read_text(encoding="utf-8")
    assert old in text
    assert any(told in fault for fault in faults(text.replace(old, new, 1)))


def test_one_more_planned_cell_changes_the_count():
    text = TABLE.read_text(encoding="utf-8")
    complete = next(line for line in text.splitlines() if line.startswith("| S0.2 |"))
    assert faults(text.replace(complete, " | ".join([*complete.split(" | ")[:-1], "planned |"])))


@pytest.mark.parametrize(
    "name", ["dtlab.train", "dtlab.train.trainer.Trainer.train_epoch", "dtlab.train.Schedule", "dtlab.launch"]
)
def test_packages_methods_and_names_loaded_on_first_use_are_found(name):
    assert exists(name)
    assert not exists(f"{name}.no_such_name")
