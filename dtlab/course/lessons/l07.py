"""Checks of lesson 07: a matrix pair cut over ranks; l07_lookup and l07_remedy have the table's."""

from __future__ import annotations

from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import difference
from dtlab.course.copies import copied_name
from dtlab.course.lessons import l07_lookup, l07_remedy  # noqa: F401  (register their exercises)
from dtlab.course.lessons.on_ranks import on_ranks, require_function

INPUTS, HIDDEN, OUTPUTS, TOKENS = 4, 12, 5, 3
REFERENCES = (
    "dtlab.parallel.tensor.copy_to_ranks",
    "dtlab.parallel.tensor.sum_over_ranks",
    "dtlab.parallel.tensor.ColumnLinear",
    "dtlab.parallel.tensor.RowLinear",
)
PARTS = ("first", "bias", "second", "last_bias")


@exercise(
    "07-pair",
    todo="cut outputs of the first and inputs of the second matrix; f all-reduces backward, g forward",
    hints=(
        "Every rank uses all of x, so the gradient of x is a sum over ranks: that is f's backward. Every "
        "rank has a part of y, so y is a sum over ranks: that is g's forward. last_bias belongs to the sum.",
        "f: forward x.view_as(x); backward: total = gradient.clone(); dist.all_reduce(total); return total. "
        "g: the same two the other way round. cut: first.chunk(ranks, 0)[rank], bias.chunk(ranks, 0)[rank], "
        "second.chunk(ranks, 1)[rank]. pair: F.gelu(F.linear(CopyToRanks.apply(x), first, bias)), then "
        "SumOverRanks.apply(F.linear(hidden, second)) + last_bias.",
    ),
    references=REFERENCES,
)
def pair(checks: Checks, answer: Any, cut: Any) -> None:
    """Numbers held and messages on 2 and 3 ranks; then outputs and every gradient of one process."""
    require_function(cut)
    copied = copied_name(cut, REFERENCES)
    if copied:
        raise CheckFailed(f"cut is {copied} itself, or calls it. Write it out: three slices.")
    for size in (2, 3):
        _cut_right(checks, cut, size)
    worlds = {size: on_ranks(size, _measure, answer, cut) for size in (2, 3)}
    for size, ranks in worlds.items():
        for rank, one in enumerate(ranks):
            _answered(one, rank)
        for way, look in (
            ("forward", "g makes it, behind the second matrix; f gives x on as it is"),
            ("backward", "f makes it, before the first matrix; g gives the gradient on as it is"),
        ):
            for one in ranks:
                checks.integer(f"all-reduces in {way}, {size} ranks", one[way][0], 1, look=look)
        checks.integer(
            f"bytes given to forward's, {size} ranks",
            ranks[0]["forward"][1],
            8 * TOKENS * OUTPUTS,
            look="the parts of y, nothing else",
        )
        checks.integer(
            f"bytes given to backward's, {size} ranks",
            ranks[0]["backward"][1],
            8 * TOKENS * INPUTS,
            look="the gradient of x. If it was that of y: does g's backward all-reduce, as that of "
            "torch.distributed.nn does?",
        )
    whole = _one_process()
    for size, ranks in worlds.items():
        for rank, one in enumerate(ranks):
            wanted = {
                name: value if name in ("y", "x", "last_bias") else _part(value, name, rank, size)
                for name, value in whole.items()
            }
            for name in ("y", "x", *PARTS):
                what = "output" if name == "y" else f"gradient of {name}"
                checks.equal(
                    f"{what}, {size} ranks",
                    one[name],
                    wanted[name],
                    tolerance=1e-12,
                    look=_look(name, one, wanted, size),
                )
    checks.passed[:] = list(dict.fromkeys(checks.passed))  # one line for all ranks


def _cut_right(checks: Checks, cut: Any, size: int) -> None:
    """Sizes of the parts of every rank, before any rank is started."""
    numbers = _numbers()
    for rank in range(size):
        given = cut(numbers["first"], numbers["bias"], numbers["second"], rank, size)
        if given is None:
            raise ToDo("cut gave None; is a return missing?")
        if not isinstance(given, tuple | list) or len(given) != 3 or [t.dim() for t in given] != [2, 1, 2]:
            raise CheckFailed("cut: give three tensors, the parts of first [., .], bias [.], second [., .].")
        first, bias, second = given
        for what, got, look in (
            ("outputs of first", first.shape[0], "outputs are dimension 0 of a matrix in torch"),
            ("numbers of bias", bias.shape[0], "each output has one"),
            ("inputs of second", second.shape[1], "inputs are dimension 1 of a matrix in torch"),
        ):
            checks.integer(f"{what} on each of {size} ranks", got, HIDDEN // size, look=f"cut: {look}")


def _answered(one: dict[str, Any], rank: int) -> None:
    if one.get("gave") == "None":
        raise ToDo("pair or cut gave None; is a return missing?")
    if "gave" in one:
        raise CheckFailed(f"rank {rank}: {one['gave']}")


def _look(name: str, one: dict[str, Any], wanted: dict[str, Any], size: int) -> str:
    if name == "y":
        surplus = one["y"] - wanted["y"]
        if difference(surplus, (size - 1) * one["last_bias_value"].expand_as(surplus), 1e-9) == "":
            return f"last_bias was added {size} times: add it behind the sum, not on each rank before it"
        if difference(surplus, -one["last_bias_value"].expand_as(surplus), 1e-9) == "":
            return "last_bias is missing: add it behind the sum"
        if difference(size * one["y"], wanted["y"] + (size - 1) * one["last_bias_value"], 1e-9) == "":
            return "this is the mean over the ranks: y is the sum of the parts"
        return (
            "first, gelu, second on each rank's part, then the sum; cut: the inputs of second that belong to "
            "this rank's outputs of first"
        )
    if difference(one[name], size * wanted[name], 1e-9) == "":
        return f"{size} times too long: g's backward gives the gradient on as it is, every rank has it whole"
    if name == "x":
        return "f's backward: all-reduce the gradient, give back the sum"
    return "g's backward gives the gradient on; f's forward gives x on"


def _numbers() -> dict[str, Any]:
    import torch

    draw = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    return {
        "x": normal(TOKENS, INPUTS), "first": normal(HIDDEN, INPUTS), "bias": normal(HIDDEN),
        "second": normal(OUTPUTS, HIDDEN), "last_bias": normal(OUTPUTS), "wanted": normal(TOKENS, OUTPUTS),
    }  # fmt: skip


def _one_process() -> dict[str, Any]:
    """Output and gradients with whole matrices."""
    import torch.nn.functional as F

    numbers = _numbers()
    leaves = {name: numbers[name].requires_grad_() for name in ("x", *PARTS)}
    y = F.linear(
        F.gelu(F.linear(leaves["x"], leaves["first"], leaves["bias"])), leaves["second"], leaves["last_bias"]
    )
    ((y - numbers["wanted"]) ** 2).sum().backward()
    return {"y": y.detach(), **{name: leaf.grad for name, leaf in leaves.items()}}


def _part(whole: Any, name: str, rank: int, size: int) -> Any:
    return whole.chunk(size, 1 if name == "second" else 0)[rank]


def _measure(answer: Any, cut: Any) -> dict[str, Any]:
    """What this rank holds, sends and computes."""
    import torch

    from dtlab import traffic, world

    with world() as w:
        numbers = _numbers()
        given = cut(numbers["first"], numbers["bias"], numbers["second"], w.rank, w.size)
        parts = [part.detach().clone().requires_grad_() for part in given]
        x, last_bias = numbers["x"].requires_grad_(), numbers["last_bias"].requires_grad_()
        with traffic() as forward:
            y = answer(x, *parts, last_bias)
        if y is None:
            return {"gave": "None"}
        if not isinstance(y, torch.Tensor) or y.shape != numbers["wanted"].shape or not y.requires_grad:
            return {"gave": f"pair: give y, a tensor {tuple(numbers['wanted'].shape)} with a gradient."}
        with traffic() as backward:
            ((y - numbers["wanted"]) ** 2).sum().backward()
        w.barrier()
        leaves = dict(zip(("x", *PARTS), (x, *parts, last_bias), strict=True))
        return {
            "forward": _all_reduces(forward), "backward": _all_reduces(backward),
            "y": y.detach(), "last_bias_value": last_bias.detach(),
            **{name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
               for name, leaf in leaves.items()},
        }  # fmt: skip


def _all_reduces(counted: Any) -> tuple[int, int]:
    calls = [call for call in counted.collective_log if call.op == "all_reduce"]
    return len(calls), sum(call.payload for call in calls)
