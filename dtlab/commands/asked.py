"""The question before something that costs is sent (lesson 15)."""

from __future__ import annotations

import sys

from dtlab.errors import UserError


def agreed(name: str, usd: float | None) -> bool:
    """Whether a person answers yes to a job that costs at most ``usd``.

    Raises:
        UserError: standard input is no terminal, so there is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise UserError("send = True: there is nobody to ask; add --yes to send the job without a question")
    price = "an unknown price" if usd is None else f"up to ${usd:,.2f}"
    return input(f"\nSend {name} for {price}? Type yes: ").strip().lower() == "yes"
