"""Check of lesson 07's choice of remedies: the largest item of the bill decides, until the bill fits."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import require_function

T4 = 13_700_000_000  # four fifths of a T4, rounded
# rows, dim, other parameters, activations, card, ranks -> remedies, bytes by item after them
_CASES: dict[str, tuple[tuple[int, int, int, int, int, int], list[str], dict[str, int]]] = {
    "S4's table at 256": (
        (1_000_000, 256, 3_000_000, 10_000_000, T4, 8),
        [],
        {"table": 4_096_000_000, "states": 48_000_000, "activations": 10_000_000},
    ),
    "S4's table at 1,024": (
        (1_000_000, 1024, 3_000_000, 30_000_000, T4, 8),
        ["sparse gradients"],
        {"table": 12_288_000_000, "states": 48_000_000, "activations": 30_000_000},
    ),
    "3M rows": (
        (3_000_000, 1024, 3_000_000, 30_000_000, T4, 8),
        ["sparse gradients", "row-wise state"],
        {"table": 12_300_000_000, "states": 48_000_000, "activations": 30_000_000},
    ),
    "4M rows": (
        (4_000_000, 1024, 3_000_000, 30_000_000, T4, 8),
        ["sparse gradients", "row-wise state", "rows over ranks"],
        {"table": 2_050_000_000, "states": 48_000_000, "activations": 30_000_000},
    ),
    "no item alone is over the card": (
        (625_000, 1000, 312_500_000, 0, T4, 8),
        ["sparse gradients"],
        {"table": 7_500_000_000, "states": 5_000_000_000, "activations": 0},
    ),
    "S3's model": (
        (0, 1, 320_000_000, 32_880_000_000, 32_000_000_000, 8),
        ["smaller micro-batch"],
        {"table": 0, "states": 5_120_000_000, "activations": 8_220_000_000},
    ),
    "S3's model on a T4 with long samples": (
        (0, 1, 320_000_000, 60_000_000_000, T4, 8),
        ["smaller micro-batch", "recompute"],
        {"table": 0, "states": 5_120_000_000, "activations": 3_750_000_000},
    ),
    "a model of 7e9": (
        (0, 1, 7_000_000_000, 1_000_000_000, 32_000_000_000, 8),
        ["states over ranks"],
        {"table": 0, "states": 14_000_000_000, "activations": 1_000_000_000},
    ),
    "a table, then what was behind it": (
        (500_000, 1024, 100_000_000, 8_000_000_000, 6_000_000_000, 4),
        ["sparse gradients", "smaller micro-batch", "row-wise state"],
        {"table": 2_050_000_000, "states": 1_600_000_000, "activations": 2_000_000_000},
    ),
    "a bill of exactly the card": ((1_000, 10, 0, 40_000, 200_000, 2), [], {
        "table": 160_000, "states": 0, "activations": 40_000,
    }),
}  # fmt: skip


@exercise(
    "07-remedy",
    todo="while the bill is over the card, take the next remedy of its largest item; return both",
    hints=(
        "Two dicts: bytes of each item now, and for each item the remedies that are left, with the bytes "
        "that the item has after each. The largest item may be another one after a remedy.",
        "while sum(bill.values()) > card: item = max(bill, key=bill.get); if nothing is left for it, raise "
        "ValueError(item); name, bill[item] = left[item].pop(0); taken.append(name). The table: 16, then 12 "
        "bytes a number, then 4 a number and 4 a row, then that // ranks.",
    ),
)
def remedy(checks: Checks, answer: Any) -> None:
    """Number of remedies and bytes after them; then which, and in which order; then what cannot fit."""
    require_function(answer)
    gave = {case: _given(answer, arguments, case) for case, (arguments, _, _) in _CASES.items()}
    for case, (_, names, left) in _CASES.items():
        taken, bill = gave[case]
        if len(taken) != len(names):
            checks.integer(
                f"{case}: remedies taken",
                len(taken),
                len(names),
                look=_wrong_turn(list(taken), names)
                or "stop as soon as the sum of all items is at most the card, and not before",
            )
        for item, size in left.items():
            if bill.get(item) != size:
                checks.integer(
                    f"{case}: bytes of {item} afterwards",
                    bill.get(item),
                    size,
                    look=_wrong_turn(list(taken), names)
                    or "an item changes only by its own remedies; see the table above for its bytes",
                )
        if len(bill) != len(left):
            checks.integer(f"{case}: items of the bill", len(bill), len(left))
    steps = sum(len(names) for _, names, _ in _CASES.values())
    checks.integer(
        f"remedies taken for {len(_CASES)} bills", sum(len(taken) for taken, _ in gave.values()), steps
    )
    checks.equal(
        "which remedies, in which order",
        {case: list(taken) for case, (taken, _) in gave.items()},
        {case: names for case, (_, names, _) in _CASES.items()},
        look="the item that is largest now decides, not a fixed order; its remedies in their order",
    )
    for item, arguments in {
        "table": (40_000_000, 1024, 0, 0, T4, 8),
        "states": (0, 1, 7_000_000_000, 0, 13_000_000_000, 8),
        "activations": (0, 1, 0, 300_000_000_000, T4, 8),
    }.items():
        try:
            answer(*arguments)
        except ValueError as error:
            said = str(error)
        else:
            said = ""
        checks.true(
            f"{item} too large for every remedy: a ValueError that names {item}",
            item in said,
            look="no remedy is left for the largest item: say so, and do not return a bill that does not fit",
        )


def _wrong_turn(taken: list[Any], names: list[str]) -> str:
    """Where to look when the remedies leave the right way; "" when there are only too many or too few."""
    for number, (got, right) in enumerate(zip(taken, names, strict=False), start=1):
        if got != right:
            return f"remedy {number} was {got!r}: the item that was largest then asks for {right!r}"
    return ""


def _given(answer: Any, arguments: tuple[int, ...], case: str) -> tuple[Any, Any]:
    try:
        given = answer(*arguments)
    except ValueError as error:
        raise CheckFailed(
            f"{case}: raised ValueError: {error}, and this bill can be made to fit.\n"
            "Where to look: which item did it choose? The largest one still has a remedy."
        ) from None
    if given is None or given is ...:
        raise ToDo("choose gave None; is a return missing?" if given is None else "...")
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], dict):
        raise CheckFailed(f"{case}: choose gave {given!r}: give (list of remedies, dict of bytes by item).")
    if not isinstance(given[0], list | tuple):
        raise CheckFailed(f"{case}: the remedies are {given[0]!r}: give a list of their names.")
    return given
