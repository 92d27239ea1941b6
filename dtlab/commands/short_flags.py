"""``--model gpt`` and ``--data text`` for a run without a configuration file, and degrees given twice.

A model belongs to its data: the GPT reads text, the DeepFM tables. So both flags say ``--data.name``,
which is written out before the words are parsed, where ``--model`` is a table of fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dtlab.errors import UserError
from dtlab.train.config_parallel import DEGREES

__all__ = ["written_out"]

MODELS = ("deepfm", "gpt")
EXAMPLES = {"--model": "gpt", "--data": "text"}


def written_out(words: Sequence[str], name_in_file: Callable[[], str | None]) -> list[str]:
    """The words of ``dtlab train`` with ``--data.name`` in place of ``--model`` and ``--data``.

    Args:
        name_in_file: gives data.name of the configuration file, or None.

    Raises:
        UserError: an unknown model, one that does not read the data, a flag without its value, a degree
            under its short and its long name.

    >>> written_out(["train", "--model", "gpt", "--tp", "2"], lambda: None)
    ['train', '--tp', '2', '--data.name', 'text']
    """
    _refuse_both_forms(words)
    rest, given = [], {}
    left = list(words)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in EXAMPLES or value.startswith("{"):
            rest.append(word)
            continue
        if not equals:
            if not left or left[0].startswith("-"):
                raise UserError(f"{flag}: needs a value, for example {flag} {EXAMPLES[flag]}")
            value = left.pop(0)
        given[flag[2:]] = value
    model, data = given.get("model"), given.get("data")
    if model is not None and model not in MODELS:
        raise UserError(f"model = {model!r}: choose {' or '.join(MODELS)}")
    if model == "gpt" and data is None:
        data = "text"
    name = data if data is not None or model is None else name_in_file()
    if model is not None and (name == "text") != (model == "gpt"):
        other = "a table" if model == "gpt" else "text"
        raise UserError(f"model = {model!r}: data.name = {name!r} is {other}; leave --model out")
    return rest if data is None else [*rest, "--data.name", data]


def _refuse_both_forms(words: Sequence[str]) -> None:
    """``--tp 2 --parallel.tp 4``: one of them would be left out without a word."""
    flags = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    for name in DEGREES:
        short = name.replace("_", "-")
        if {f"--{short}", f"--parallel.{short}"} <= flags:
            raise UserError(f"--{short}: is given as --parallel.{short} too; leave one of them out")
