"""Defaults of a run on text, where a table's are far too large: a window is a hundred samples' work.

They stand for what the user leaves out, and are written into the configuration, so that the record, a
checkpoint and a plan all say them.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["text_defaults"]

_BATCH = {"optim.global_batch": 32, "optim.micro_batch": 8}  # windows, as in examples/gpt.toml
_LOG_EVERY = 5  # steps: a step of a small GPT lasts a tenth of a second to seconds on a CPU


def text_defaults(is_given: Callable[[str], bool]) -> dict[str, int]:
    """Field -> value for a run with data.name = "text"; what is given is left alone.

    A global batch that is given keeps the micro-batch that its user gave with it, or none.

    Args:
        is_given: says of a field, such as ``"optim.global_batch"``, whether the user gave it.

    >>> text_defaults(lambda field: field == "run.log_every")
    {'optim.global_batch': 32, 'optim.micro_batch': 8}
    >>> text_defaults(lambda field: field == "optim.global_batch")
    {'run.log_every': 5}
    """
    found: dict[str, int] = {}
    if not is_given("optim.global_batch"):
        found = {field: value for field, value in _BATCH.items() if not is_given(field)}
        if is_given("parallel.micro_batches"):  # it says into how many parts a step is cut
            found.pop("optim.micro_batch", None)
    return found if is_given("run.log_every") else {**found, "run.log_every": _LOG_EVERY}
