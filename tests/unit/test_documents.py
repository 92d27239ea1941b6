"""What the documents show can be typed as it stands there, and what they link to exists."""

import re
from pathlib import Path

import pytest

from dtlab.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/*.md", "data/*.md", "notebooks/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
SHOWING = [*DOCUMENTS, *(path.relative_to(ROOT) for path in sorted(ROOT.glob("notebooks/src/*.py")))]
SHOWING += [path.relative_to(ROOT) for path in sorted(ROOT.glob("examples/**/*.toml"))]
COMMAND = re.compile(r"(?:^|\s)(?:python -m )?dtlab(?P<part>\.course|\.train)? (?P<words>[a-z].*)")


def code_of(text: str) -> list[str]:
    """Lines of code blocks, code between backticks, and comments that show a command."""
    text = re.sub(r"\\\n#?", " ", text)
    blocks = re.compile(r"^```\w*\n(.*?)^```", re.S | re.M)
    lines = [line for block in blocks.findall(text) for line in block.split("\n")]
    lines += re.findall(r"`([^`\n]+)`", blocks.sub("", text))
    return lines + re.findall(r"^(?:#\s*|    )((?:python -m )?dtlab [^`\n]*)$", text, re.M)


def commands_of(text: str) -> set[str]:
    """Commands with at least one flag, without what a shell or a reader takes for himself."""
    found = set()
    for line in code_of(text):
        match = COMMAND.search(line)
        if match is not None and "--" in match["words"]:
            words = re.split(r"\s+#|;|\||&&|\)", match["words"])[0]
            found.add(f"{(match['part'] or '').removeprefix('.')} {words}".strip())
    return found


def unknown_flags(command: str) -> list[str]:
    names, apps, _ = app.parse_commands([word for word in command.split() if word != "--help"])
    if not names:
        return [command]
    known = {name for argument in apps[-1].assemble_argument_collection() for name in argument.names}
    given = re.findall(r"(?<!\S)(--[a-z][\w.-]*)", command)
    return [flag for flag in given if flag not in known | {"--help"}]


@pytest.mark.parametrize("document", SHOWING, ids=str)
def test_every_flag_of_a_command_that_is_shown_exists(document: Path) -> None:
    text = (ROOT / document).read_text()
    assert {command: unknown for command in commands_of(text) if (unknown := unknown_flags(command))} == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_file_that_is_linked_exists(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / document).read_text())
    here = (ROOT / document).parent
    assert [link for link in links if "://" not in link and not (here / link).exists()] == []


def test_the_commands_of_the_readme_are_found_and_a_wrong_flag_is_noticed() -> None:
    shown = commands_of((ROOT / "README.md").read_text())
    assert {"tune examples/tune.toml --trials 12", "course export --learners DIR"} <= shown
    assert len(shown) > 20
    assert unknown_flags("tune examples/tune.toml --trails 12") == ["--trails"]
    assert unknown_flags("tunes examples/tune.toml --trials 12") != []
