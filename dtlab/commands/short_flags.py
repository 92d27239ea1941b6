"""``--model gpt`` and ``--data text`` for a run without a configuration file.

A model belongs to its data: the GPT reads text, the DeepFM tables. So both flags say ``--data.name``,
which is written out before the words are parsed, where ``--model`` is a table of fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dtlab.errors import UserError

__all__ = ["written_out"]

MODELS = ("deepfm", "gpt")
EXAMPLES = {"--model": "gpt", "--data": "text"}


def written_out(words: Sequence[str], name_in_file: Callable[[], str | None]) -> list[str]:
    """The words of ``dtlab train`` with ``--data.name`` in place of ``--model`` and ``--data``.

    Args:
        name_in_file: gives data.name of the configuration file, or None.

    Raises:
        UserError: an unknown model, one that does not read the data, a flag without its value.

    >>> written_out(["train", "--model", "gpt", "--tp", "2"], lambda: None)
    ['train', '--tp', '2', '--data.name', 'text']
    """
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
