"""Check of lesson 10's overlap: all-reduces that start in backward and are waited for after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtlab.course.checks import CheckFailed, Checks, exercise
from dtlab.course.compare import describe
from dtlab.course.lessons.on_ranks import on_ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

# Layers in each bucket, the last layer first: three buckets, one for everything, one for each layer.
CUTS = ((1, 2, 1), (4,), (1, 1, 1, 1))
STEPS = 2


@exercise(
    "10-overlap",
    todo="start a bucket in the hook of its last gradient; in finish() end all, and begin afresh",
    hints=(
        "The hook gets the parameter: which bucket is it in, and which gradients of that bucket are still "
        "missing? What has to be so again when finish() returns, so that the next backward works as well?",
        "bucket_of = {p: number for number, bucket in enumerate(buckets) for p in bucket}; missing = "
        "[set(bucket) for bucket in buckets]; begun = []. The hook discards its parameter, and when the set "
        "is empty: begun.append(start(buckets[number])). finish(): end(*one) for each of begun, then clear "
        "begun and fill missing again (missing[:] = ...).",
    ),
)
def overlap(checks: Checks, answer: Any, start: Any, end: Any) -> None:
    """All-reduces of a step, those that start before the last gradient, and waits; then the means."""
    results = on_ranks(2, _rank, answer, start, end)
    for one in results:
        if "refused" in one:
            raise CheckFailed(
                f"overlapped returned {one['refused']}: give the function, `return finish`, which is called "
                "after each backward."
            )
    for cut in CUTS:
        for rank, one in enumerate(results):
            for step, told in enumerate(one[cut]["steps"]):
                if told != _right(cut):
                    _refuse(checks, cut, rank, step, told)
    for cut in CUTS:
        name = f"{len(cut)} bucket{'s' if len(cut) > 1 else ''}"
        right = _right(cut)
        checks.integer(f"{name}: all-reduces of a step", right["starts"], len(cut))
        checks.integer(f"{name}: started before the last gradient was there", right["early"], len(cut) - 1)
    waits = sum(told["waits in backward"] for one in results for cut in CUTS for told in one[cut]["steps"])
    checks.integer("waits while backward computes", waits, 0)
    checks.equal(
        "gradients of every step and rank are the means",
        [[one[cut]["gradients"] for cut in CUTS] for one in results],
        [[one[cut]["means"] for cut in CUTS] for one in results],
        tolerance=1e-12,
        look="end() gets the three things that start() gave: end(*one)",
    )


def _right(cut: tuple[int, ...]) -> dict[str, int]:
    return {
        "starts": len(cut),
        "early": len(cut) - 1,
        "incomplete": 0,
        "waits in backward": 0,
        "ends": len(cut),
    }


_LOOKS = {
    "incomplete": (
        "buckets started before all of their gradients were there",
        "start a bucket when no parameter of it is missing any more, and not at its first gradient. Is the "
        "book of what is missing filled again after each step?",
    ),
    "waits in backward": (
        "waits while backward still computed",
        "end() waits: call it in finish() only. A hook that waits stops the computing it should run beside",
    ),
    "starts": (
        "all-reduces of this step",
        "one for each bucket, in each backward: none twice, none left out, also in the second step",
    ),
    "early": (
        "all-reduces that had started when the last gradient was there",
        "all buckets but the last one are complete before that: start them in the hooks, not in finish()",
    ),
    "ends": (
        "all-reduces that were ended in finish()",
        "each that was started in this step, once; forget those of the step before",
    ),
}


_TOO_FEW = {
    "starts": (
        "one for each bucket: does every parameter have the hook, and is a bucket known to be complete when "
        "its last gradient comes, also in the second step?"
    ),
    "ends": "finish() ends every all-reduce that was started in this step: until then the mean is not there",
}


def _refuse(checks: Checks, cut: tuple[int, ...], rank: int, step: int, told: dict[str, int]) -> None:
    right = _right(cut)
    for name, (what, look) in _LOOKS.items():
        if told[name] < right[name]:
            look = _TOO_FEW.get(name, look)
        if told[name] != right[name]:
            where = f"{len(cut)} buckets, rank {rank}, step {step}"
            checks.integer(f"{where}: {what}", told[name], right[name], look=look)


def _rank(answer: Any, start: Any, end: Any) -> dict[Any, Any]:
    from dtlab import world

    with world() as w:
        found = {}
        for cut in CUTS:
            found[cut] = _steps(answer, start, end, cut, w)
            if "refused" in found[cut]:
                return found[cut]
            w.barrier()
        return found


def _steps(answer: Any, start: Any, end: Any, cut: tuple[int, ...], w: Any) -> dict[str, Any]:
    """STEPS backwards of a fresh model; what was started and ended when, and the gradients."""
    import torch
    import torch.distributed as dist

    model = _model()
    layers = [layer for layer in model if list(layer.parameters())][::-1]
    buckets, first = [], 0
    for count in cut:
        buckets.append([p for layer in layers[first : first + count] for p in layer.parameters()])
        first += count
    log = _Log(start, end)
    # A hook on the tensor runs before those on its accumulated gradient, which start a bucket.
    for parameter in layers[-1].parameters():
        parameter.register_hook(lambda _gradient: log.note_gradient())
    finish = answer(buckets, log.start, log.end)
    if not callable(finish):
        return {"refused": "None" if finish is None else describe(finish)}
    steps, gradients, means = [], [], []
    for step in range(STEPS):
        x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2 * step + w.rank))
        model.zero_grad()
        expected = _mean(x, dist)
        log.begin()
        model(x).square().sum().backward()
        log.in_backward = False
        finish()
        steps.append(log.told())
        gradients.append(_flat(model))
        means.append(expected)
    return {"steps": steps, "gradients": gradients, "means": means}


def _model() -> nn.Sequential:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        layers: list[nn.Module] = []
        for inputs, outputs in ((4, 5), (5, 3), (3, 6), (6, 2)):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        return nn.Sequential(*layers).double()


def _flat(model: nn.Module) -> Tensor:
    import torch

    zero = torch.zeros
    return torch.cat(
        [(zero(p.numel()) if p.grad is None else p.grad).flatten().double() for p in model.parameters()]
    )


def _mean(x: Tensor, dist: Any) -> Tensor:
    """The right answer: every rank's gradient of a twin, averaged."""
    twin = _model()
    twin(x).square().sum().backward()
    flat = _flat(twin)
    dist.all_reduce(flat)
    return flat / dist.get_world_size()


class _Log:
    """start and end of the lesson, with what happened when."""

    def __init__(self, start: Any, end: Any) -> None:
        self._start, self._end = start, end
        self.begin()

    def begin(self) -> None:
        self.starts = self.early = self.incomplete = self.waits = self.ends = 0
        self.in_backward = True

    def note_gradient(self) -> None:
        self.early = self.starts  # the last call of it counts

    def start(self, bucket: Any) -> Any:
        import torch

        parameters = list(bucket)
        self.starts += 1
        self.incomplete += any(parameter.grad is None for parameter in parameters)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return self._start(parameters)

    def end(self, *given: Any) -> Any:
        self.waits += self.in_backward
        self.ends += not self.in_backward
        return self._end(*given)

    def told(self) -> dict[str, int]:
        return {
            "starts": self.starts,
            "early": self.early,
            "incomplete": self.incomplete,
            "waits in backward": self.waits,
            "ends": self.ends,
        }
