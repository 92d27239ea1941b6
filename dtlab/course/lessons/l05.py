"""Checks of lesson 05: the scaling rule, one schedule in optimizer steps, and a loop that applies it."""

from __future__ import annotations

import math
from typing import Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons import l05_steps  # noqa: F401  (registers its exercise)
from dtlab.course.lessons.on_ranks import require_function

# base lr, base batch, micro-batch, ranks, stages, accumulation, rule -> global batch, factor of the rate
_SCALES = {
    "S3, failure 1: 16 on each of 8 ranks, chosen for 128": ((1e-3, 128, 16, 8, 1, 1, "linear"), 128, 1.0),
    "S3, naive: 128 on each of 8 ranks, chosen for 128": ((1e-3, 128, 128, 8, 1, 1, "linear"), 1024, 8.0),
    "32 on each of 4 ranks, chosen for 32, linear": ((1e-3, 32, 32, 4, 1, 1, "linear"), 128, 4.0),
    "32 on each of 4 ranks, chosen for 32, sqrt": ((1e-3, 32, 32, 4, 1, 1, "sqrt"), 128, 2.0),
    "32 on each of 4 ranks, chosen for 32, none": ((1e-3, 32, 32, 4, 1, 1, "none"), 128, 1.0),
    "8 on each of 4 ranks, 2 accumulated, chosen for 64": ((0.1, 64, 8, 4, 1, 2, "linear"), 64, 1.0),
    "8 on each of 4 ranks, 4 accumulated, chosen for 64": ((0.1, 64, 8, 4, 1, 4, "linear"), 128, 2.0),
    "S3's job: 16 ranks in pipelines of 2, 128 each": (
        (3e-4, 128, 128, 16, 2, 1, "sqrt"),
        1024,
        math.sqrt(8),
    ),
    "a smaller batch than the base": ((0.4, 256, 16, 2, 1, 2, "sqrt"), 64, 0.5),
}


@exercise(
    "05-scale",
    todo="count the samples of one optimizer step, and scale the rate by the ratio of batches",
    hints=(
        "The ranks of one pipeline work on the same samples, so only ranks // stages of them bring samples. "
        "The factor compares two batches: that of the step now, and that for which the rate was chosen.",
        "global_batch = micro_batch * (ranks // stages) * accumulation; factor = global_batch / base_batch; "
        "linear multiplies by factor, sqrt by math.sqrt(factor), none by 1. Look at `rule` first and raise "
        "ValueError for any other.",
    ),
    references=("dtlab.train.scaling.scaled_lr", "dtlab.train.scaling.effective_batch"),
)
def scale(checks: Checks, answer: Any) -> None:
    """Global batches of all cases, then rates, then a rule that does not exist."""
    require_function(answer)
    gave = {}
    for case, (arguments, _, _) in _SCALES.items():
        base_lr, base_batch, micro_batch, ranks, stages, accumulation, rule = arguments
        given = answer(
            base_lr, base_batch, micro_batch, ranks, stages=stages, accumulation=accumulation, rule=rule
        )
        gave[case] = _pair(given, case)
    for case, (_, batch, _) in _SCALES.items():
        checks.integer(
            f"{case}: samples of one optimizer step",
            gave[case][0],
            batch,
            look="micro-batch x ranks that bring samples of their own x accumulated micro-batches, each once",
        )
    for case, (arguments, _, factor) in _SCALES.items():
        checks.equal(
            f"{case}: rate",
            float(gave[case][1]),
            arguments[0] * factor,
            tolerance=1e-9,
            look="the factor is global batch / base batch, and its square root for sqrt; not the ranks",
        )
    message = _refusal(answer, 1e-3, 32, 32, 4, rule="cubic")
    checks.true(
        "the rule 'cubic' is a ValueError that lists none, linear and sqrt",
        message is not None and all(rule in message for rule in ("none", "linear", "sqrt")),
        look="raise ValueError with a text that names the three",
    )


def _pair(given: Any, case: str) -> tuple[Any, Any]:
    if given is None or given is ...:
        raise ToDo("scale gave None; is a return missing?" if given is None else "...")
    if not isinstance(given, tuple) or len(given) != 2:
        raise CheckFailed(f"{case}: scale gave {given!r}: give (global_batch, lr).")
    return given


def _refusal(answer: Any, *arguments: Any, **named: Any) -> str | None:
    """The text of the ValueError that the answer raises; None when it raises none."""
    try:
        answer(*arguments, **named)
    except ValueError as error:
        return str(error)
    return None


@exercise(
    "05-schedule",
    todo="rise over the warm-up, use exactly `base` in its last step, fall from there to `low`",
    hints=(
        "Which step is the first to use exactly `base`? Count the steps from that one to the end: that is "
        "the length of the decay. Warm-up 0 and a warm-up as long as the run must not divide by 0.",
        "peak = max(warmup - 1, 0). Before it: base * (step + 1) / warmup. From it on: share = (step - peak) "
        "/ max(1, total - warmup), at most 1; linear is base + (low - base) * share, cosine is "
        "low + (base - low) * (1 + math.cos(math.pi * share)) / 2.",
    ),
    references=("dtlab.train.schedule.Schedule", "torch.optim.lr_scheduler.CosineAnnealingLR"),
)
def schedule(checks: Checks, answer: Any) -> None:
    """Where the peak is, in counts; then tables; then plans that cannot be kept."""
    require_function(answer)
    for warmup, total, peak in ((4, 10, 3), (5, 20, 4), (0, 10, 0), (1, 10, 0), (400, 800, 399), (10, 10, 9)):
        rates = _table(answer, total, 5.0, total, warmup)
        checks.integer(
            f"warm-up {warmup} of {total} steps: the first step that uses exactly the full rate",
            rates.index(5.0) if 5.0 in rates else -1,
            peak,
            look="step s of the warm-up uses base * (s + 1) / warmup; -1 means that no step uses base",
        )
    checks.integer(
        "steps at the full rate in a warm-up of 4 and a decay",
        sum(rate == 0.1 for rate in _table(answer, 10, 0.1, 10, 4)),
        1,
        look="the decay begins at the peak: the step after it must already be lower",
    )
    half = [0.1 * 0.5 * (1 + math.cos(math.pi * k / 6)) for k in range(1, 7)]
    rising = [0.025, 0.05, 0.075, 0.1]
    _compare(checks, answer, "cosine after 4 warm-up steps", 10, [*rising, *half], warmup=4)
    above = [0.02 + 0.8 * rate for rate in half]
    _compare(checks, answer, "cosine down to 0.02", 11, [*rising, *above, 0.02], warmup=4, low=0.02)
    _compare(checks, answer, "linear from 0.1 to 0", 12, [*_line(0.1, 0.0, 10), 0.0, 0.0], kind="linear")
    low = [0.05, 0.1, *_line(0.1, 0.02, 8)[1:], 0.02, 0.02]
    _compare(
        checks, answer, "linear to 0.02 after 2 warm-up steps", 11, low, warmup=2, low=0.02, kind="linear"
    )
    for warmup, total in ((10, 10), (1, 1), (0, 1)):
        rates = _table(answer, total + 3, 0.1, total, warmup)
        checks.true(
            f"warm-up {warmup} of {total} steps: finite rates between 0 and the full one, 0 after the end",
            all(math.isfinite(rate) and 0 <= rate <= 0.1 for rate in rates) and rates[total:] == [0.0] * 3,
            look="the decay may have no step at all; after the planned end the rate stays at low",
        )
    for warmup, total in ((20, 10), (0, 0)):
        message = _refusal(answer, 0, 0.1, total, warmup) or ""
        checks.true(
            f"warm-up {warmup} of {total} steps is a ValueError that names both numbers",
            str(warmup) in message and str(total) in message,
            look="the full rate would never be reached, and nobody would be told; raise before computing",
        )


def _line(high: float, low: float, steps: int) -> list[float]:
    return [high + (low - high) * step / steps for step in range(steps)]


def _table(answer: Any, steps: int, *arguments: Any, **named: Any) -> list[float]:
    rates = [answer(step, *arguments, **named) for step in range(steps)]
    for rate in rates:
        if rate is None or rate is ...:
            raise ToDo("lr_at gave None; is a return missing?" if rate is None else "...")
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise CheckFailed(f"lr_at gave {rate!r}: give a number.")
    return rates


def _compare(
    checks: Checks, answer: Any, what: str, steps: int, expected: list[float], warmup: int = 0, **named: Any
) -> None:
    checks.equal(
        f"{what}: every rate",
        _table(answer, steps, 0.1, 10, warmup, **named),
        expected,
        tolerance=1e-12,
        look="without a warm-up step 0 uses the full rate and step `total` would use low; with one, the last "
        "planned step uses low. Past the end it stays there",
    )
