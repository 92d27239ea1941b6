"""Check of lesson 15's early stopping: two real ranks with unlike validation rows stop at one epoch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons.on_ranks import on_ranks, require_function

_LATE = 10.0  # seconds after which a collective gives up
ROWS = (100, 300)  # validation rows of rank 0 and of rank 1
_LOOK = "all ranks gather the sums after every epoch, and all decide on the same figure"


class Case(NamedTuple):
    name: str
    losses: tuple[tuple[float, ...], tuple[float, ...]]  # mean loss of each rank's own rows, by epoch
    sizes: tuple[int, ...]  # samples of each epoch, over all ranks
    patience: int
    most: int
    epochs: int  # that have to be made
    best: int


CASES = (
    # Over all rows .60 .525 .5375 .54 .55; the mean of the ranks' two means is lowest in epoch 4.
    Case("rank 0 gets better, rank 1 worse",
         ((0.60, 0.60, 0.50, 0.42, 0.40), (0.60, 0.50, 0.55, 0.58, 0.60)),
         (1000,) * 5, 2000, 5, 4, 2),
    Case("the other way round",
         ((0.60, 0.70, 0.80, 0.90, 0.95, 0.95), (0.60, 0.55, 0.50, 0.45, 0.43, 0.42)),
         (1000,) * 6, 1000, 6, 6, 6),
    Case("epochs of unlike size, patience of 1,500 samples",
         ((0.6, 0.5, 0.6, 0.7, 0.7, 0.7), (0.6, 0.5, 0.6, 0.7, 0.7, 0.7)),
         (1000, 500, 500, 500, 500, 1000), 1500, 6, 5, 2),
    Case("it ends before patience does", ((0.6, 0.5, 0.7), (0.6, 0.5, 0.7)), (1000,) * 3, 10_000, 3, 3, 2),
    Case("a loss that is no number",
         ((0.6, math.nan, math.nan), (0.6, 0.5, 0.5)), (1000,) * 3, 2000, 3, 3, 1),
    Case("as good is not better", ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), (1000,) * 3, 2000, 3, 3, 1),
)  # fmt: skip


@exercise(
    "15-stop",
    todo="an epoch, the loss over all ranks' rows, keep the weights when it is better, else look at patience",
    hints=(
        "Each rank knows the sum of the losses of its own rows and their number. What must all ranks know "
        "before any of them decides? And which weights shall be there at the end?",
        "parts = w.gather(fit.validate(), dst=None); loss = sum of the sums / sum of the numbers. If loss < "
        "best: best, epoch and fit.samples are noted, fit.keep(). Else if fit.samples - noted >= patience: "
        "break. After the loop fit.put_back().",
    ),
    references=("dtlab.train.stopping.EarlyStopping", "dtlab.train.stopping.BestEpoch"),
)
def stop(checks: Checks, answer: Any) -> None:
    """Epochs made, best epoch and weights on two real ranks, in six cases; then what was returned."""
    require_function(answer)
    ranks = on_ranks(2, _measure, answer, CASES, timeout=40, look=_LOOK)
    for number, case in enumerate(CASES):
        _case(checks, case, [one[number] for one in ranks])
    checks.equal(
        "(epochs made, best epoch), on every rank",
        [[tuple(found["returned"]) for found in one] for one in ranks],
        [[(case.epochs, case.best) for case in CASES]] * 2,
    )


def _case(checks: Checks, case: Case, ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        if one["returned"] is None or one["returned"] is ...:
            raise ToDo("the answer gave None; is a return missing?")
        if not isinstance(one["returned"], tuple | list) or len(one["returned"]) != 2:
            raise CheckFailed("give a tuple of two: epochs made, best epoch.")
    for what, right, look in (
        ("epochs", case.epochs, _stop_mistake(case, ranks)),
        ("weights at the end are of epoch", case.best, _best_mistake(case, ranks)),
    ):
        found = [one[what] for one in ranks]
        wrong = next((rank for rank, count in enumerate(found) if count != right), None)
        name = f"{case.name}: {what}" + (", on both ranks" if wrong is None else f" on rank {wrong}")
        checks.integer(name, found[wrong or 0], right, look=look)


def _stop_mistake(case: Case, ranks: list[dict[str, Any]]) -> str:
    made, ends = ranks[0]["epochs"], ranks[0]["weights at the end are of epoch"]
    all_rows = (
        "the loss of all rows: the sum of the ranks' sums by the sum of their numbers, not a mean of means"
    )
    if ends != case.best and ranks[0]["put_back"]:
        return all_rows
    if len(set(case.sizes)) > 1:
        return "count patience in samples (fit.samples), not in epochs"
    if made == case.epochs + 1 < case.most:
        return "patience is used up when as many samples have gone by: >=, not >"
    if made > case.epochs:
        return "stop when fit.samples minus the samples at the best epoch is `patience` or more: >=, not >"
    return "patience counts from the best epoch on: fit.samples minus the samples then"


def _best_mistake(case: Case, ranks: list[dict[str, Any]]) -> str:
    ends = ranks[0]["weights at the end are of epoch"]
    if ends == ranks[0]["epochs"] != case.best and ranks[0]["put_back"] == 0:
        return "these are the last weights: fit.put_back() after the loop"
    if ends == 0:
        return "nothing was kept: fit.keep() at every epoch that is better"
    return "fit.keep() at every epoch whose loss over all rows is below the best so far, and only there"


def _measure(answer: Any, cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    """On a rank: each case with an epoch that is one all-reduce, and losses that are given."""
    from dtlab import world

    with world(timeout=_LATE) as w:
        return [_one(w, answer, case) for case in cases]


def _one(w: Any, answer: Any, case: Case) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    class Scripted:
        """A fit whose weights are the number of their epoch."""

        def __init__(self) -> None:
            self.epochs, self.samples, self.weights, self.kept, self.times_put_back = 0, 0, 0, 0, 0

        def epoch(self) -> None:
            dist.all_reduce(torch.ones(1))
            if self.epochs >= len(case.sizes):
                raise CheckFailed(f"epoch {self.epochs + 1} of {case.most}: the loop ends at `most`.")
            self.samples += case.sizes[self.epochs]
            self.epochs += 1
            self.weights = self.epochs

        def validate(self) -> tuple[float, int]:
            if not self.epochs:
                raise CheckFailed("validated before the first epoch: fit.epoch() first.")
            rows = ROWS[w.rank]
            return case.losses[w.rank][self.epochs - 1] * rows, rows

        def keep(self) -> None:
            self.kept = self.weights

        def put_back(self) -> None:
            self.weights = self.kept
            self.times_put_back += 1

    fit = Scripted()
    returned = answer(w, fit, case.patience, case.most)
    return {
        "returned": returned,
        "epochs": fit.epochs,
        "weights at the end are of epoch": fit.weights,
        "put_back": fit.times_put_back,
    }
