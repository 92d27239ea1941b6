"""The question before something that costs is sent (lesson 15)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dtlab.errors import UserError

if TYPE_CHECKING:
    from dtlab.sagemaker.job import TrainingJob


def agreed(name: str, usd: float | None) -> bool:
    """Whether a person answers yes to a job that costs at most ``usd``.

    Raises:
        UserError: standard input is no terminal, so there is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise UserError("send = True: there is nobody to ask; add --yes to send the job without a question")
    price = "an unknown price" if usd is None else f"up to ${usd:,.2f}"
    return input(f"\nSend {name} for {price}? Type yes: ").strip().lower() == "yes"


def require_price(job: TrainingJob, usd: float | None) -> None:
    """Refuse to send a job unasked whose budget nobody can say is kept.

    Raises:
        UserError: the job has a budget, and no price is known.
    """
    if usd is None and job.budget_usd is not None:
        raise UserError(
            f"budget_usd = {job.budget_usd:g}: no price is known for this job in {job.region}, so nobody can "
            "say that it is kept; add one with dtlab prices refresh, or send it without --yes"
        )
