"""Check of lesson 16's trainer: the measured lines of the report card on a small log, two real ranks.

The plan: ``l16_plan``; the serving path: ``l16_serving``; the whole report card: ``l16_report``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, exercise
from dtlab.course.lessons import l16_plan, l16_report, l16_serving  # noqa: F401  (register their exercises)
from dtlab.course.lessons.on_ranks import SAME_CALLS, require_function, stuck

if TYPE_CHECKING:
    from dtlab.course.capstone_measure import Measured
    from dtlab.diagnose.report_lines import Line

ROWS, SEED = 5_000, 3


@exercise(
    "16-trainer",
    todo="deal the rows out, give the tables' rows owners, keep all of the state, and score every row once",
    hints=(
        "Lesson 04 has a sampler that knows its rank, lesson 07 deals tables out, lesson 13 lists what the "
        "next step reads, and lesson 04 says why a mean of the ranks' AUCs is not the AUC.",
        "order: GlobalBatchSampler(rows, GLOBAL_BATCH, seed=seed). share: data_parallel(shard_embeddings("
        "model, 'row_wise'), w). kept: WholeState(run.model, run.optimizer), run.sampler, run.precision and "
        "Generators(). auc: evaluate(model, table).auc.",
    ),
)
def trainer(checks: Checks, answer: Any, share: Any, kept: Any, auc: Any) -> None:
    """Counts first: rows, ranks with the right AUC. Then one model, bytes and the resumed run."""
    from dtlab.course.capstone import Recipe, clicks
    from dtlab.course.capstone_measure import measure
    from dtlab.course.report_card import card_of

    for function in (answer, share, kept, auc):
        require_function(function)
    measured = measure(Recipe(answer, share, kept, auc), clicks(ROWS), seed=SEED, start=start_ranks())
    lines = {line.name: line for line in card_of(measured).lines}
    rows = lines["each row once an epoch"].look
    checks.integer("rows that were seen twice or more in an epoch", len(measured.rows.twice), 0, look=rows)
    checks.integer("rows that were never seen", len(measured.rows.never), 0, look=rows)
    checks.integer(
        "ranks whose `auc` gives the AUC of all rows",
        sum(abs(said - measured.auc) <= 1e-9 for said in measured.said),
        len(measured.said),
        look=lines["AUC that the trainer reports"].look,
    )
    steps_of_rows(checks, measured)
    passes(checks, lines["one model on all ranks"])
    passes(checks, lines["bytes of a rank in a step"])
    passes(checks, lines["resume, new processes"])


def steps_of_rows(checks: Checks, measured: Measured) -> None:
    """Require steps of the global batch, and another order for each epoch and seed."""
    from dtlab.course.capstone import GLOBAL_BATCH

    checks.equal(
        "rows of the first step, over all ranks",
        measured.batch,
        GLOBAL_BATCH,
        look="a sampler that knows its ranks takes the global batch and cuts it itself",
    )
    checks.equal(
        "different orders, of an epoch, the next one and another seed",
        measured.orders,
        3,
        look="each epoch is shuffled anew, from `seed` and the number of the epoch",
    )


def passes(checks: Checks, line: Line) -> None:
    """Require that a line of the card passes."""
    checks.true(f"{line.name}: {line.measured}, wanted: {line.wanted}", line.passed, look=line.look)


def start_ranks(timeout: float = 90) -> Callable[..., Sequence[Any]]:
    """``launch`` for a report card, with a refusal when the ranks wait for each other."""
    from dtlab import RankError, launch

    def start(function: Any, ranks: int, *arguments: Any) -> Sequence[Any]:
        try:
            return list(launch(function, ranks, *arguments, timeout=timeout, echo=False))
        except RankError as error:
            if error.exception_type not in ("TimeoutError", "LateRankError"):
                raise
            raise CheckFailed(stuck(error, timeout, SAME_CALLS)) from None

    return start
