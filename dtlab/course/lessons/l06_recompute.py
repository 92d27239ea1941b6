"""Check of lesson 06's recomputing: runs of each block, bytes that wait, gradients and random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, ToDo, exercise
from dtlab.course.compare import difference

if TYPE_CHECKING:
    from torch import Tensor, nn

BLOCKS, ROWS, WIDTH, INSIDE = 3, 2048, 8, 48


@exercise(
    "06-recompute",
    todo="keep x and the generator's state in forward; run the block again in backward",
    hints=(
        "In forward autograd does not record, so return block(x) is all the computing. In backward, x has to "
        "be a fresh leaf (detach().requires_grad_()) and recording must be on (torch.enable_grad()).",
        "forward: ctx.block, ctx.state = block, torch.get_rng_state(); ctx.save_for_backward(x); return "
        "block(x). backward: x = ctx.saved_tensors[0].detach().requires_grad_(); keep get_rng_state(), set "
        "ctx.state, run the block under enable_grad, set the kept state again; output.backward(gradient); "
        "return x.grad, None.",
    ),
    references=("torch.utils.checkpoint.checkpoint", "dtlab.train.recompute.recompute_blocks"),
)
def recompute(checks: Checks, answer: Any) -> None:
    """Three blocks with dropout, plain and recomputed, two steps of each."""
    if not hasattr(answer, "apply"):
        raise CheckFailed("hand in the class Recompute itself, a torch.autograd.Function.")
    plain, got = _two_steps(None), _tried(answer)
    checks.integer(
        f"runs of {BLOCKS} blocks in one step",
        got["runs"],
        2 * BLOCKS,
        look=_LEAF
        if got["runs in forward"] == BLOCKS and got["runs"] > 2 * BLOCKS
        else "each block runs once in forward and once again in backward",
    )
    checks.integer(
        f"inputs of a block that {BLOCKS} blocks keep, in bytes over the bytes of one",
        got["kept"],
        BLOCKS,
        look=f"save x and nothing else; the plain blocks keep {plain['kept']}",
    )
    checks.equal("output", got["output"], plain["output"], tolerance=1e-12, look="return block(x)")
    checks.equal(
        "gradient of the first block's input", got["input"], plain["input"], tolerance=1e-12,
        look=_look(got, plain),
    )  # fmt: skip
    checks.equal(
        "gradients of every parameter", got["parameters"], plain["parameters"], tolerance=1e-12,
        look=_look(got, plain),
    )  # fmt: skip
    checks.equal(
        "the next random number after the step", got["next"], plain["next"],
        look="set the generator back to the state in which backward found it",
    )  # fmt: skip


_LEAF = (
    "backward went on through x into the blocks before, which ran again: x must be a fresh leaf there, "
    "ctx.saved_tensors[0].detach().requires_grad_()"
)
_ERRORS = {
    "does not require grad": "in a Function's backward nothing is recorded unless you say so: run the block "
    "inside of `with torch.enable_grad():`",
    "number of gradients": "forward took two things, x and block, so backward returns two: x.grad, None",
    "backward through the graph a second time": _LEAF,
}


def _tried(answer: Any) -> dict[str, Any]:
    """The steps with the answer; torch's error about a known mistake comes with its cause."""
    try:
        return _two_steps(answer)
    except RuntimeError as error:
        look = next((cause for words, cause in _ERRORS.items() if words in str(error)), None)
        if look is None:
            raise
        raise CheckFailed(f"torch says: {error}.\nWhere to look: {look}") from error


def _look(got: dict[str, Any], plain: dict[str, Any]) -> str:
    if not got["input"].any():
        return (
            "it is 0: backward returns (x.grad, None), after output.backward(gradient); x must be a leaf "
            "that wants a gradient, .detach().requires_grad_()"
        )
    if not got["parameters"].any():
        return (
            "they are 0: torch.autograd.grad(output, x) gives x's gradient and no other; "
            "output.backward(gradient) fills those of the block's parameters too"
        )
    if difference(got["without_dropout"], plain["without_dropout"], 1e-12) == "":
        return "without dropout it is right: run the block again from the state that forward saved"
    return "start the block's backward from the gradient that came: output.backward(gradient)"


def _blocks(dropout: float) -> nn.ModuleList:
    import torch
    from torch import nn

    torch.manual_seed(4)
    return nn.ModuleList(
        nn.Sequential(nn.Linear(WIDTH, INSIDE), nn.GELU(), nn.Linear(INSIDE, WIDTH), nn.Dropout(dropout))
        for _ in range(BLOCKS)
    ).double()


def _two_steps(answer: Any) -> dict[str, Any]:
    """What one step with dropout gave, and the parameters' gradients of one without."""
    import torch

    with torch.random.fork_rng(devices=[]):
        found = _step(answer, 0.4)
        found["without_dropout"] = _step(answer, 0.0)["parameters"]
    return found


def _step(answer: Any, dropout: float) -> dict[str, Any]:
    import torch

    from dtlab.diagnose.memory_trace import trace_memory

    blocks = _blocks(dropout)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    runs = [0]

    def ran(*_: Any) -> None:
        runs[0] += 1

    for block in blocks:
        block.register_forward_hook(ran)
    weights = torch.linspace(-1, 1, WIDTH, dtype=torch.float64)
    with trace_memory() as trace:
        trace.label("before", [x, *blocks.parameters()])
        before, hidden = trace.now, x
        for block in blocks:
            hidden = _tensor(answer.apply(hidden, block)) if answer is not None else block(hidden)
        in_forward = runs[0]
        # x is there in any case; the output of the last block takes its place in the count.
        kept = (trace.now - before) // x.nbytes
        (hidden.square() @ weights).sum().backward()
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in blocks.parameters()]
    return {
        "runs": runs[0],
        "runs in forward": in_forward,
        "kept": kept,
        "output": hidden.detach(),
        "input": torch.zeros_like(x) if x.grad is None else x.grad,
        "parameters": torch.cat([gradient.flatten() for gradient in gradients]),
        "next": torch.rand(3),
    }


def _tensor(given: Any) -> Tensor:
    import torch

    if given is None or given is ...:
        raise ToDo("Recompute.apply gave None; is a return missing in forward?")
    if not isinstance(given, torch.Tensor):
        raise CheckFailed(f"Recompute.apply gave {type(given).__name__}: forward returns block(x).")
    return given
