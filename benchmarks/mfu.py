"""What share of a card's peak does the small GPT reach in training: in fp32, in bf16, and compiled?

`python -m benchmarks.mfu` trains the GPT on real text with `dtlab.Trainer` on one CUDA card, in about two
minutes with compiling. A row per way:

[precision, compiled, loss, step_ms, tokens_per_second, tflops, peak_tflops, mfu]

MFU is the FLOPs that the model needs (`dtlab.cost.work`: 6 for each multiplied parameter of a token, and all
s^2 scores of attention) over the data sheet's peak of that precision (`dtlab.cost.calibration`); fp32 is held
against TF32 where products may use it. Without a card the same code runs on a tiny shape, without an MFU.
"""

import re
import time
from dataclasses import asdict, dataclass

import torch

import dtlab
from benchmarks.common import Figure, report, say, wants_json
from dtlab.cost.builders import transformer
from dtlab.cost.calibration import Gpu, gpu
from dtlab.cost.work import flops_per_sample
from dtlab.data.text import TextBatch, load_text
from dtlab.errors import UserError
from dtlab.models.gpt import GPT
from dtlab.train.window_loss import window_losses


@dataclass(frozen=True)
class Shape:
    """Of the GPT, and of one step on one device."""

    layers: int = 12
    dim: int = 768
    heads: int = 12
    sequence: int = 1024
    batch: int = 16
    warmup: int = 5
    steps: int = 20

    @property
    def flops(self) -> float:
        """Of one step, forward and backward."""
        counted = transformer(
            self.layers, self.dim, 256, self.sequence, heads=self.heads, gated=False, tied=True
        )
        return self.batch * flops_per_sample(counted)


SMALL = Shape(layers=2, dim=32, heads=2, sequence=32, batch=4, warmup=1, steps=2)


@dataclass(frozen=True)
class Reached:
    """One row; `mfu` and `peak_tflops` are None where no data sheet says the peak."""

    precision: str
    compiled: bool
    loss: float
    step_ms: float
    tokens_per_second: float
    tflops: float
    peak_tflops: float | None
    mfu: float | None


def card_of(name: str) -> Gpu | None:
    """The peaks of the card that CUDA calls so; None for one that is not in the tables.

    >>> card_of("NVIDIA A100-SXM4-80GB").name, card_of("Tesla T4").name, card_of("NVIDIA GeForce RTX 4090")
    ('A100', 'T4', None)
    """
    for word in re.split(r"[\s-]+", name):
        try:
            return gpu(word)
        except UserError:
            continue
    return None


def measure(
    shape: Shape, precision: str, compiled: bool | str, device: torch.device, data: TextBatch
) -> Reached:
    """Train on ``data``, the same batch each step, and time the steps after the warm-up.

    ``compiled`` as ``Trainer``'s ``compile``; ``device``: a card, or a CPU to try the code out.
    """
    torch.manual_seed(0)
    model = GPT(256, shape.sequence, shape.dim, shape.layers, shape.heads).to(device)
    trainer = dtlab.Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True if device.type == "cuda" else None),
        loss=lambda net, batch: window_losses(net(batch.tokens), batch.targets).sum(),
        precision=precision,
        compile=compiled,
        show_progress=False,
    )
    batch = data.to(device)
    for _ in range(shape.warmup):
        trainer.step(batch, shape.batch)
    _wait(device)
    started = time.perf_counter()
    for _ in range(shape.steps):
        total = trainer.step(batch, shape.batch)
    _wait(device)
    seconds = (time.perf_counter() - started) / shape.steps
    tflops = shape.flops / seconds / 1e12
    card = card_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    peak = None
    if card is not None:
        uses_tf32 = precision == "fp32" and torch.backends.cuda.matmul.allow_tf32
        peak = card.peak("half" if precision != "fp32" else "tf32" if uses_tf32 else "fp32") / 1e12
    return Reached(
        precision=precision,
        compiled=bool(compiled),
        loss=float(total) / shape.batch,
        step_ms=1e3 * seconds,
        tokens_per_second=shape.batch * shape.sequence / seconds,
        tflops=tflops,
        peak_tflops=peak,
        mfu=None if peak is None else tflops / peak,
    )


def some_text(shape: Shape) -> TextBatch:
    """A batch of windows of Python's standard library."""
    return load_text(shape.sequence).train.take(torch.arange(shape.batch))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    on_card = torch.cuda.is_available()
    device, shape = (torch.device("cuda"), Shape()) if on_card else (torch.device("cpu"), SMALL)
    ways: list[tuple[str, bool]] = [("fp32", False), ("bf16", False)]
    ways += [("bf16", True)] if on_card else []  # a CPU's compiler is not what is asked about
    data = some_text(shape)
    figures: dict[str, Figure] = {}
    say(f"  {shape}")
    for precision, compiled in ways:
        row = asdict(measure(shape, precision, compiled, device, data))
        say(f"  {row}")
        label = f"{precision}_compiled" if compiled else precision
        figures |= {f"{label}_{name}": value for name, value in row.items() if not isinstance(value, bool)}
        figures.pop(f"{label}_precision")
    notes = [] if wants_json() or on_card else ["no CUDA card: a tiny shape, and no MFU"]
    report("MFU of the small GPT", figures, notes)


if __name__ == "__main__":
    main()
