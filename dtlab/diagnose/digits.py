"""Figures with as many digits as it takes to see why they pass or fail."""

from __future__ import annotations

from decimal import Decimal

__all__ = ["beside", "percent", "percent_beside"]


def beside(value: float, limit: float, style: str = "g", digits: int = 2, *, times: int = 1) -> str:
    """``value`` with so many digits that what is read lies on the same side of ``limit`` as the value.

    Args:
        value, limit: what is compared.
        style: "f" or "g", as in a format.
        digits: the fewest digits.
        times: factor of both, 100 for percent.

    >>> beside(0.00010001, 1e-4), beside(0.5, 1e-4)
    ('0.00010001', '0.5')
    """
    exact, bound = Decimal(repr(float(value))) * times, Decimal(repr(float(limit))) * times
    for more in range(digits, 18):
        text = f"{float(exact):.{more}{style}}"
        if Decimal(text).compare(bound) == exact.compare(bound):
            return text
    return str(exact)


def percent(share: float) -> str:
    """A limit as it was given.

    >>> percent(0.2), percent(0.015)
    ('20 %', '1.5 %')
    """
    return f"{float(Decimal(repr(float(share))) * 100):.10g} %"


def percent_beside(share: float, limit: float) -> str:
    """A share that is held against a limit.

    >>> percent_beside(0.22, 0.2), percent_beside(0.0099999, 0.01)
    ('22.0 %', '0.99999 %')
    """
    return f"{beside(share, limit, 'f', 1, times=100)} %"
