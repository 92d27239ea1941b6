"""Check of lesson 08's loop: actions on real ranks, what stays alive, messages, gradients of one process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtlab.course.checks import Checks, exercise, require_float
from dtlab.course.compare import describe, difference
from dtlab.course.lessons.on_ranks import on_ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dtlab.parallel.stage_messages import StageMessages

RANKS, WIDTH, ROWS = 2, 4, 11
# Schedule and micro-batches: of unequal rows, and with two stages on a rank.
CASES = {"1f1b, 5 micro-batches": ("1f1b", 5), "interleaved, 4 micro-batches": ("interleaved", 4)}
_STUCK = (
    "what a rank waits for must have been sent: after each forward but the last stage's an activation goes "
    "on, after each backward but the first stage's a gradient goes back"
)


@exercise(
    "08-run",
    todo="forward: take or receive the input, run the stage, keep both, send on; backward: the way back",
    hints=(
        "What has a backward to know of its forward? The input (its .grad goes back) and the output (on the "
        "last stage: the loss). Keep the two under (stage, i), and drop them in the backward. A received "
        "tensor needs requires_grad_(); what is sent is detach()ed.",
        "F: x = inputs[i] or messages.receive_activation(stage, i, shape); y = "
        "stages[stage](x.requires_grad_(stage > 0)); on the last stage y = loss(y, targets[i]), added up as "
        "y.item(), else "
        "messages.send_activation(stage + 1, i, y.detach(), shape); kept[stage, i] = x, y. "
        "B: x, y = kept.pop((stage, i)); y.backward(None on the last stage, else "
        "messages.receive_gradient(stage, i, y)); if stage > 0: messages.send_gradient(stage, i, x.grad).",
    ),
    references=("dtlab.parallel.hand_pipeline.HandPipeline", "dtlab.parallel.pipeline.pipeline"),
)
def run(checks: Checks, answer: Any) -> None:
    """Two schedules on two ranks: forwards, messages, what is alive; then the gradients of one process."""
    from dtlab.cost.pipeline import live_activations

    results = on_ranks(RANKS, _run_cases, answer, look=_STUCK)
    for case, (name, m) in CASES.items():
        stages = RANKS * (2 if name == "interleaved" else 1)
        for rank, one in enumerate(result[case] for result in results):
            own, borders = stages // RANKS, _borders(rank, stages)
            _count(checks, f"{case}: forwards on rank {rank}", one["forwards"], m * own,
                   "each F action runs stages[stage] once, on one micro-batch")  # fmt: skip
            for what, sides in borders.items():
                _count(checks, f"{case}: {what} sent by rank {rank}", one[what], m * sides,
                       "activations go on from every stage but the last, gradients back from every stage but "
                       "the first")  # fmt: skip
            alive = live_activations(name, RANKS, m, rank)  # type: ignore[arg-type]
            _count(checks, f"{case}: most activations alive on rank {rank}", one["alive"], alive,
                   _alive_look(one["alive"], alive))  # fmt: skip
            _count(checks, f"{case}: outputs of earlier micro-batches kept too long on rank {rank}",
                   max(0, one["outputs"] - alive), 0,
                   "drop what you kept when its backward is over: kept.pop, not kept[...]")  # fmt: skip
    total = {what: sum(one[case][what] for one in results for case in CASES)
             for what in ("forwards", "activations", "gradients", "alive")}  # fmt: skip
    checks.integer("forwards in both schedules", total["forwards"], total["forwards"])
    checks.integer("activations sent", total["activations"], total["activations"])
    checks.integer("gradients sent", total["gradients"], total["gradients"])
    checks.integer("most activations alive, over ranks and schedules", total["alive"], total["alive"])
    _compare_with_one_process(checks, results)


def _compare_with_one_process(checks: Checks, results: list[dict[str, Any]]) -> None:
    got, wanted = {}, {}
    for case in CASES:
        value, gradients = _one_process(case)
        for rank, one in enumerate(result[case] for result in results):
            require_float(f"{case}: loss returned on rank {rank}", one["returned"])
            for name, gradient in one["gradient"].items():
                if difference(gradient, gradients[name], 1e-9):
                    look = _gradient_look(gradient, gradients[name])
                    what = f"{case}: gradient of {name} on rank {rank}"
                    checks.equal(what, gradient, gradients[name], tolerance=1e-9, look=look)
                got[case, name], wanted[case, name] = gradient, gradients[name]
        returned = [result[case]["returned"] for result in results]
        checks.equal(
            f"{case}: loss returned on each rank", returned, [0.0, value], tolerance=1e-9,
            look="the sum of loss(...).item() over micro-batches; 0.0 on a rank without the last stage",
        )  # fmt: skip
    checks.equal("every gradient, equal to one process with the whole batch", got, wanted, tolerance=1e-9)


def _count(checks: Checks, what: str, got: int, right: int, look: str) -> None:
    if got != right:
        checks.integer(what, got, right, look=look)


def _alive_look(alive: int, right: int) -> str:
    if alive < right:
        return "run the actions in the order in which they are given, forwards with gradients on"
    return "run each backward where it stands; what a later one keeps (a sum of losses, say) holds its graph"


def _borders(rank: int, stages: int) -> dict[str, int]:
    """How many stages of a rank have one behind them, and one before them."""
    own = range(rank, stages, RANKS)
    return {"activations": sum(s < stages - 1 for s in own), "gradients": sum(s > 0 for s in own)}


def _gradient_look(got: Tensor | None, right: Tensor) -> str:
    """What is wrong with a gradient, told from what it is instead."""
    if got is None or not bool(got.any()):
        return "it is 0: a received activation needs requires_grad_(), and every B action a backward"
    ratio = float(got.flatten()[0] / right.flatten()[0])
    if difference(got, ratio * right, 1e-9) == "":
        return (
            f"{ratio:.3g} times what it should be. loss(...) is the micro-batch's part already: multiply and "
            "divide nothing, and run each backward once"
        )
    return (
        "start each backward from what receive_gradient gives (the last stage: from the loss), with the "
        "micro-batch of the action, and clear no gradient in between"
    )


def _stages(count: int) -> list[nn.Module]:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(count)]


def _loss(output: Tensor, targets: Tensor) -> Tensor:
    return ((output - targets) ** 2).sum() / ROWS


def _rows() -> tuple[Tensor, Tensor]:
    import torch

    generator = torch.Generator().manual_seed(80)
    inputs, targets = torch.randn(2, ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, targets


def _one_process(case: str) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients, by "stage.name", of the whole batch in one process."""
    stages = _stages(RANKS * (2 if CASES[case][0] == "interleaved" else 1))
    output, targets = _rows()
    for stage in stages:
        output = stage(output)
    loss = _loss(output, targets)
    loss.backward()
    return loss.item(), _gradients(dict(enumerate(stages)))


def _gradients(stages: dict[int, nn.Module]) -> dict[str, Tensor]:
    import torch

    return {
        f"stage {number}, {name}": torch.zeros_like(p) if p.grad is None else p.grad
        for number, stage in stages.items()
        for name, p in stage.named_parameters()
    }


def _run_cases(answer: Any) -> dict[str, Any]:
    """On a rank: every case with the answer, and what was counted."""
    from dtlab import world
    from dtlab.parallel.schedules import build_schedule
    from dtlab.parallel.stage_messages import StageMessages

    found = {}
    with world() as w:
        for case, (name, m) in CASES.items():
            schedule = build_schedule(name, RANKS, m)
            counted = _Counted()
            watched = {
                number: counted.watch(stage)
                for number, stage in enumerate(_stages(schedule.num_stages))
                if number in schedule.stages_of(w.rank)
            }
            messages = counted.count_sends(StageMessages(schedule, w.rank))
            inputs, targets = (column.tensor_split(m) for column in _rows())
            actions = [str(action) for action in schedule.ranks[w.rank]]
            returned = answer(actions, watched, schedule.num_stages - 1, inputs, targets, _loss, messages)
            messages.finish({rows.shape for rows in inputs})
            found[case] = {
                "returned": returned, "forwards": counted.forwards, "alive": counted.most_alive,
                "outputs": counted.most_outputs, "gradient": _gradients(watched), **counted.sent,
            }  # fmt: skip
            w.barrier()
    return found


class _Counted:
    """What the stages of one rank did: forwards, messages, graphs and outputs that were alive at once."""

    def __init__(self) -> None:
        self.forwards = self.alive = self.most_alive = self.most_outputs = 0
        self.sent = {"activations": 0, "gradients": 0}
        self._outputs: list[weakref.ref[Tensor]] = []

    def watch(self, stage: nn.Module) -> nn.Module:
        """The stage with hooks that count its forwards, and what of each is still there later."""
        import torch
        from torch.autograd.graph import saved_tensors_hooks

        def before(module: Any, inputs: tuple[Tensor, ...]) -> None:
            self._outputs = [output for output in self._outputs if output() is not None]
            self.most_outputs = max(self.most_outputs, len(self._outputs))

        def after(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            self.forwards += 1
            one = torch.ones((), dtype=output.dtype)
            with saved_tensors_hooks(lambda tensor: _Token(tensor, self), lambda token: token.tensor):
                output = output * one  # the same values; its graph saves one tensor
            self._outputs.append(weakref.ref(output))
            return output

        stage.register_forward_pre_hook(before)
        stage.register_forward_hook(after)
        return stage

    def count_sends(self, messages: StageMessages) -> StageMessages:
        """The messages, whose two ways of sending are counted."""
        for what, name in (("activations", "send_activation"), ("gradients", "send_gradient")):
            setattr(messages, name, self._counting(what, getattr(messages, name)))
        return messages

    def _counting(self, what: str, send: Callable[..., None]) -> Callable[..., None]:
        def counting(stage: int, micro_batch: int, tensor: Any, *shape: Any) -> None:
            require_tensor(what, tensor)
            self.sent[what] += 1
            send(stage, micro_batch, tensor, *shape)

        return counting


class _Token:
    """A tensor that a graph keeps for its backward; it is counted as long as it lives."""

    def __init__(self, tensor: Tensor, counted: _Counted) -> None:
        self.tensor, self._counted = tensor, counted
        counted.alive += 1
        counted.most_alive = max(counted.most_alive, counted.alive)

    def __del__(self) -> None:
        self._counted.alive -= 1


def require_tensor(what: str, tensor: Any) -> None:
    """Refuse to send what is no tensor, with what has probably happened."""
    from torch import Tensor

    if not isinstance(tensor, Tensor):
        why = "a received activation needs requires_grad_(), or it gets no gradient"
        raise TypeError(f"{what}: expected a tensor to send, got {describe(tensor)}; {why}")
