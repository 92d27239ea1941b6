"""Checks of lesson 14: prices of runs from measured speeds, in whole cents.

The cheapest in time and the frontier: ``l14_deadline``; the risk of spot hosts: ``l14_spot``; the hard stop:
``l14_guard``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons import l14_deadline, l14_guard, l14_spot  # noqa: F401  (register their exercises)
from dtlab.course.lessons.on_ranks import require_function

KEYS = ("machine", "cards", "hosts", "efficiency", "seconds", "cents")


class Case(NamedTuple):
    name: str
    speeds: dict[str, dict[int, float]]
    machines: dict[str, tuple[int, float]]
    samples: float
    one_card: float


CASES = (
    Case("one card", {"small": {1: 50.0}}, {"small": (1, 1.408)}, 900_000, 50.0),
    Case(
        "four kinds of host, up to 12 cards",
        {"big": {8: 700.0}, "four": {1: 110.0, 4: 380.0, 6: 480.0, 12: 900.0}, "small": {1: 100.0, 2: 150.0}},
        {"small": (1, 1.408), "four": (4, 7.09), "big": (8, 20.36), "unused": (8, 63.296)},
        36_000_000,
        110.0,
    ),
    Case("ten seconds of work", {"four": {4: 400.0}}, {"four": (4, 7.09)}, 4_000, 100.0),
)


@exercise(
    "14-prices",
    todo="for every machine and number of cards: whole hosts, efficiency, seconds, cents",
    hints=(
        "Six cards on hosts of four: how many hosts are billed? And who pays for the two cards that idle?",
        "hosts = math.ceil(cards / of_host); seconds = samples / speed; cents = round(100 * usd_per_hour * "
        "hosts * max(60, seconds) / 3600); efficiency = speed / (cards * one_card).",
    ),
    references=(
        "dtlab.cost.economics.economics",
        "dtlab.cost.billing.cost",
        "dtlab.cost.billing.gpus_to_instances",
    ),
)
def prices(checks: Checks, answer: Any) -> None:
    """Rows, hosts and cents of three price tables first; then seconds and efficiencies."""
    require_function(answer)
    given = {case.name: _rows(answer, case) for case in CASES}
    for case in CASES:
        rows, right = given[case.name], expected(case)
        checks.integer(
            f"{case.name}: rows", len(rows), len(right), look="one row for each speed that was measured"
        )
        for row, want in zip(rows, right, strict=True):
            what = f"{case.name}: cards {want['cards']} on {want['machine']}"
            if (row["machine"], row["cards"]) != (want["machine"], want["cards"]):
                raise CheckFailed(
                    f"{what}: got a row for {row['cards']!r} on {row['machine']!r}.\n"
                    "Where to look: rows in the order of `speeds`, and of the cards in it."
                )
            checks.integer(
                f"{what}, hosts",
                row["hosts"],
                want["hosts"],
                look="hosts are whole: math.ceil(cards / of_host)",
            )
            checks.integer(f"{what}, cents", row["cents"], want["cents"], look=_mistake(case, row, want))
    for name in ("seconds", "efficiency"):
        checks.equal(
            f"{name} of every row",
            {case.name: [row[name] for row in given[case.name]] for case in CASES},
            {case.name: [row[name] for row in expected(case)] for case in CASES},
            tolerance=1e-9,
            look="seconds = samples / speed; efficiency = speed / (cards * one_card)",
        )


def expected(case: Case) -> list[dict[str, Any]]:
    """The right rows of a case."""
    rows = []
    for machine, measured in case.speeds.items():
        of_host, usd = case.machines[machine]
        for cards, speed in measured.items():
            hosts, seconds = math.ceil(cards / of_host), case.samples / speed
            rows.append(
                {
                    "machine": machine,
                    "cards": cards,
                    "hosts": hosts,
                    "efficiency": speed / (cards * case.one_card),
                    "seconds": seconds,
                    "cents": _cents(usd * hosts, max(60, seconds)),
                }
            )
    return rows


def _cents(usd_per_hour: float, seconds: float) -> int:
    return round(100 * usd_per_hour * seconds / 3600)


def _mistake(case: Case, row: dict[str, Any], want: dict[str, Any]) -> str:
    """What the usual wrong number of cents comes from."""
    of_host, usd = case.machines[want["machine"]]
    hosts, seconds, cents = want["hosts"], want["seconds"], row["cents"]
    wrong = {
        "a run is billed for 60 seconds at least": _cents(usd * hosts, seconds),
        "every host is billed, not one of them": _cents(usd, max(60, seconds)),
        "the price is that of a host with all its cards: idle cards are paid too": _cents(
            usd * want["cards"] / of_host, max(60, seconds)
        ),
        "the price is of a host, not of a card": _cents(usd * want["cards"], max(60, seconds)),
        "that is dollars: cents are a hundred times as many": round(want["cents"] / 100),
        "the price is per hour: an hour has 3600 seconds": round(want["cents"] * 3600),
        "billing is by the second, not by the started hour": round(
            100 * usd * hosts * math.ceil(seconds / 3600)
        ),
    }
    for said, value in wrong.items():
        if value != want["cents"] and isinstance(cents, int) and abs(cents - value) <= 1:
            return said
    return "round(100 * usd_per_hour * hosts * max(60, seconds) / 3600)"


def _rows(answer: Any, case: Case) -> list[dict[str, Any]]:
    given = answer(case.speeds, case.machines, case.samples, case.one_card)
    if given is None or given is ...:
        raise ToDo("the answer gave " + ("None; is a return missing?" if given is None else "..."))
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise CheckFailed(f"got {type(given).__name__}: give a list of dicts, one for each row.")
    for row in given:
        if missing := [key for key in KEYS if key not in row]:
            raise CheckFailed(f"a row has no {missing[0]!r}: its keys are {', '.join(KEYS)}.")
    return given
