"""Check of lesson 06's loss scale: steps made, zeros that the optimizer saw, scales, and the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.lessons import l06_accumulate, l06_recompute  # noqa: F401  (register their exercises)
from dtlab.course.lessons.on_ranks import require_function

if TYPE_CHECKING:
    from torch import Tensor

# True gradients of the weights in the ten steps are these powers of two times 1, 2, 4, ... 2**7.
STEPS = (-40, -30, -12, -28, -2, -30, -36, -9, 0, -26)
ROWS, START, EVERY, CLIP, RATE = 8, 2.0**13, 3, 0.1, 0.5
TOO_LARGE = 65504.0  # the largest number of fp16


def expected() -> dict[str, Any]:
    """Scales, counts of good steps, zeros and weights by the rule, in plain arithmetic.

    >>> expected()["made"], expected()["scales"][:4]
    (8, [8192.0, 8192.0, 16384.0, 16384.0])
    """
    import torch

    scale, good, made, zeros = START, 0, 0, 0
    weights = torch.zeros(ROWS, dtype=torch.float64)
    scales, goods, norms = [], [], []
    for power in STEPS:
        true = _true_gradient(power).double()
        if float(true.max()) * scale > TOO_LARGE:
            scale, good = scale / 2, 0
            norms.append(0.0)
        else:
            norm = float(true.norm())
            weights -= RATE * true * min(1.0, CLIP / (norm + 1e-6))
            norms.append(RATE * min(norm, CLIP))
            made, good = made + 1, good + 1
            zeros += int((true * scale <= 2.0**-25).sum())
            if good == EVERY:
                scale, good = scale * 2, 0
        scales.append(scale)
        goods.append(good)
    return {
        "scales": scales, "goods": goods, "made": made, "zeros": zeros, "weights": weights, "norms": norms,
    }  # fmt: skip


def _true_gradient(power: int) -> Tensor:
    import torch

    return 2.0**power * 2.0 ** torch.arange(ROWS)


def _walk(answer: Any) -> dict[str, Any]:
    """The ten steps with the answer: what its optimizer saw, and what it returned."""
    import torch

    class Watching(torch.optim.SGD):
        made, zeros = 0, 0

        def step(self, closure: Any = None) -> Any:
            gradient = weights.grad
            self.made += 1
            if gradient is not None:
                self.zeros += int((gradient == 0).sum())
            return super().step(closure)

    # In float64, so that the smallest step is not lost beside the largest.
    weights = torch.zeros(ROWS, dtype=torch.float64, requires_grad=True)
    unused = torch.ones(1, requires_grad=True)
    optimizer = Watching([{"params": [unused]}, {"params": [weights]}], lr=RATE)
    scale, good = START, 0
    scales, goods, moved, left = [], [], [], 0
    for power in STEPS:
        before = weights.detach().clone()
        # The product in half precision makes its gradient in half precision, as under autocast.
        factors = _true_gradient(power)
        loss = (weights.half() * torch.ones(ROWS, dtype=torch.float16)).float() @ factors
        scale, good = _pair(answer(loss, optimizer, scale, good, CLIP, every=EVERY))
        scales.append(float(scale))
        goods.append(good)
        moved.append(float((weights.detach() - before).norm()))
        left += int(weights.grad is not None and bool(weights.grad.any()))
        if len(moved) == 1 and unused.grad is not None and bool(unused.grad.any()):
            raise CheckFailed("a parameter that the loss does not reach got a gradient.")
    return {
        "scales": scales, "goods": goods, "moved": moved, "left": left, "made": optimizer.made,
        "zeros": optimizer.zeros, "weights": weights.detach(),
    }  # fmt: skip


def _pair(given: Any) -> tuple[Any, Any]:
    if given is None or given is ...:
        raise ToDo("scaled_step gave None; is a return missing?" if given is None else "...")
    if not isinstance(given, tuple) or len(given) != 2:
        raise CheckFailed(f"scaled_step gave {given!r}: give (scale, good).")
    return given


@exercise(
    "06-scale",
    todo="backward from the scaled loss; look whether all is finite; divide, clip, step; set the next scale",
    hints=(
        "All gradients arrive `scale` times too large. An infinity stays one when it is divided, so look "
        "first or last, but clip only what is already divided. optimizer.param_groups holds the parameters.",
        "(loss * scale).backward(); gradients = [p.grad for group in optimizer.param_groups for p in "
        "group['params'] if p.grad is not None]; finite = all(bool(g.isfinite().all()) for g in gradients). "
        "If finite: g /= scale for each, torch.nn.utils.clip_grad_norm_(parameters, clip), step. Always "
        "zero_grad. Return (scale / 2, 0), or (scale * 2, 0) after the `every`-th good step, or (scale, "
        "good + 1).",
    ),
    references=("torch.amp.GradScaler", "dtlab.train.precision.Precision"),
)
def scale(checks: Checks, answer: Any) -> None:
    """Ten steps of known gradients, two of which overflow at their scale."""
    require_function(answer)
    right, got = expected(), _walk(answer)
    checks.integer(
        f"optimizer steps made of {len(STEPS)}",
        got["made"],
        right["made"],
        look=_made_look(got, right),
    )
    checks.integer(
        "gradient numbers that were 0 when the optimizer saw them",
        got["zeros"],
        right["zeros"],
        look="call backward on loss * scale, not on loss: afterwards it is too late"
        if got["zeros"] > right["zeros"]
        else "the scale doubles only after `every` good steps in a row, and halves after a bad one",
    )
    checks.integer(
        "steps that left a gradient for the next one",
        got["left"],
        0,
        look="optimizer.zero_grad() after every step, also after one that was left out",
    )
    checks.equal(
        "scale after each step", got["scales"], right["scales"], tolerance=1e-12,
        look="half after an infinity, double after `every` good steps in a row, else the same",
    )  # fmt: skip
    checks.equal(
        "good steps in a row after each step", got["goods"], right["goods"],
        look="0 after an infinity and after doubling; else one more",
    )  # fmt: skip
    checks.equal(
        "how far the weights moved in each step, over the right distance",
        [moved / far if far else moved for moved, far in zip(got["moved"], right["norms"], strict=True)],
        [1.0 if far else 0.0 for far in right["norms"]],
        tolerance=2e-3,
        look=_moved_look(got, right),
    )
    checks.equal("weights at the end", got["weights"], right["weights"], tolerance=1e-3)


def _made_look(got: dict[str, Any], right: dict[str, Any]) -> str:
    """Why the number of steps is wrong, told from what was left behind."""
    if not got["made"]:
        return "call optimizer.step() when every number is finite"
    if got["made"] < right["made"]:
        later = (
            "gradients that stay make the next step wrong too: optimizer.zero_grad() also after a skipped one"
        )
        return (
            later
            if got["left"]
            else "only an infinite gradient leaves a step out; is the scale doubled too early?"
        )
    if bool(got["weights"].isfinite().all()):
        return "nothing overflowed: call backward on loss * scale, not on loss"
    return "a step with an infinite gradient must be left out: look before you step"


def _moved_look(got: dict[str, Any], right: dict[str, Any]) -> str:
    """Why the weights moved too far, or not far enough."""
    ratios = [moved / far for moved, far in zip(got["moved"], right["norms"], strict=True) if far]
    if max(ratios) > 1000:
        return "the gradients were never divided by the scale"
    if min(ratios) < 0.01:
        return "divide by the scale before clipping: what is clipped must have its true size"
    if max(ratios) > 2:
        return "clip the common norm of all gradients to `clip` before the step"
    return "divide by the scale with which this step's backward ran, then clip, then step"
