"""Check of lesson 09's bill of a rank under ZeRO 0 to 3; blocks, mesh and pieces have files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons import l09_block, l09_mesh, l09_pieces  # noqa: F401  (register their exercises)
from dtlab.course.lessons.on_ranks import require_function

ITEMS = ("parameters", "gradients", "optimizer", "in use")
# Name: units, ranks, bytes a parameter of weights, gradients, optimizer.
CASES: dict[str, tuple[list[int], int, tuple[int, int, int]]] = {
    "three units in FP32": ([50, 70, 30], 4, (4, 4, 8)),
    "uneven units": ([7, 10, 3, 10], 3, (2, 4, 12)),
    "one unit": ([1000], 8, (2, 2, 12)),
    "a GPT of 350M on 8 ranks": ([12_596_224] * 24 + [52_513_792], 8, (2, 2, 12)),
}
_CUT_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}


@exercise(
    "09-zero",
    todo="what is cut counts as one part of each unit, padded; what is not cut counts whole",
    hints=(
        "The part of one unit is ceil(size / ranks), which is -(-size // ranks); add up the parts of all "
        "units. ZeRO-z cuts the first z of: optimizer, gradients, weights.",
        'whole = sum(units); part = sum(-(-size // ranks) for size in units). "optimizer": optimizer * (part '
        'if zero >= 1 else whole), and so on with 2 and 3. "in use": max(units) * ((gradients if zero >= 2 '
        "else 0) + (weights if zero >= 3 else 0)).",
    ),
    references=("dtlab.cost.zero.zero_bytes", "dtlab.cost.memory.state_bytes_per_rank"),
)
def zero(checks: Checks, answer: Any) -> None:
    """Every item of four models under every stage."""
    require_function(answer)
    for case, (units, ranks, each) in CASES.items():
        total = 0
        for stage in (0, 1, 2, 3):
            got = _items(answer(list(units), ranks, stage, each))
            wanted = right(units, ranks, stage, each)
            for item in ITEMS:
                if not _is_same(got[item], wanted[item]):
                    look = _look(item, got[item], wanted[item], units, ranks, stage, each)
                    checks.integer(f"{case}, ZeRO-{stage}: {item}, bytes", got[item], wanted[item], look=look)
            total += sum(wanted.values())
        checks.integer(f"{case}: bytes of all items, ZeRO-0 to 3 together", total, total)


def right(units: list[int], ranks: int, stage: int, each: tuple[int, int, int]) -> dict[str, int]:
    """The four items, in bytes."""
    weights, gradients, optimizer = each
    whole, part = sum(units), sum(-(-size // ranks) for size in units)
    moment = (gradients if stage >= 2 else 0) + (weights if stage >= 3 else 0)
    return {
        "parameters": weights * (part if stage >= 3 else whole),
        "gradients": gradients * (part if stage >= 2 else whole),
        "optimizer": optimizer * (part if stage >= 1 else whole),
        "in use": moment * max(units),
    }


def _items(given: Any) -> Mapping[str, Any]:
    if given is None or given is ...:
        raise ToDo("the answer gave None; is a return missing?" if given is None else "...")
    if not isinstance(given, Mapping):
        raise CheckFailed(f"the answer gave {describe(given)}: give a dict with the keys {', '.join(ITEMS)}.")
    missing = [item for item in ITEMS if item not in given]
    if missing:
        raise CheckFailed(f"the answer has no {missing[0]!r}: give a dict with the keys {', '.join(ITEMS)}.")
    return given


def _is_same(got: Any, wanted: int) -> bool:
    return hasattr(got, "__index__") and not isinstance(got, bool) and int(got) == wanted


def _look(
    item: str, got: Any, wanted: int, units: list[int], ranks: int, stage: int, each: tuple[int, int, int]
) -> str:
    """Where to look, from what came instead."""
    if not isinstance(got, int):
        return "bytes are whole numbers: // and -(-a // b), not /"
    weights, gradients, _ = each
    if item == "in use":
        moment = (gradients if stage >= 2 else 0) + (weights if stage >= 3 else 0)
        if moment and got == moment * sum(units):
            return "one unit at a time: the largest sets the peak, not the sum"
        if moment and got == moment * min(units):
            return "the peak is where the largest unit is whole"
        if stage < 3:
            return (
                "only what is cut has to be put together: nothing under ZeRO-0 and 1, under ZeRO-2 a unit's "
                "gradient until it is reduced"
            )
        return "under ZeRO-3 the weights of one unit, and its gradient until it is reduced"
    bytes_each = dict(zip(("parameters", "gradients", "optimizer"), each, strict=True))[item]
    whole, part = bytes_each * sum(units), bytes_each * sum(-(-size // ranks) for size in units)
    if got == whole:
        return f"ZeRO-{_CUT_FROM[item]} and above cut this item: a rank holds one part of {ranks}"
    if got == part:
        return f"this item is cut from ZeRO-{_CUT_FROM[item]} on; under ZeRO-{stage} every rank has all of it"
    if got == bytes_each * sum(size // ranks for size in units):
        return "round up: with // alone the last numbers of a unit are on no rank"
    if got == bytes_each * -(-sum(units) // ranks):
        return "unit by unit: each is cut by itself and padded by itself"
    return f"{bytes_each} bytes a parameter of this item"
