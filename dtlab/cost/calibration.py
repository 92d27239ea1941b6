"""What a card reaches in training, and where each figure is from (lessons 01 and 09).

- `data/gpus.csv`: peak FLOP/s by precision and memory bandwidth, dense, from data sheets.
- `data/calibrations.csv`: what training reached, by card, software, precision and kind of model. Each row is
  "measured" with its source, or an "estimate".

Where no row fits, the nearest of that precision is taken and becomes an "estimate": other software on the
card, or the row of any card. "fp32" is full precision; torch uses TF32 for products only when told to.
Shares count FLOPs as `dtlab.cost.work` does.
"""

import csv
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from dtlab.cost.collective_time import Kind
from dtlab.errors import UserError

DATA = Path(__file__).parent / "data"
Format = Literal["fp32", "tf32", "half"]
ModelKind = Literal["transformer", "cnn", "recommender"]


@dataclass(frozen=True)
class Gpu:
    """Peaks of one card: FLOP/s in fp32, TF32 (None before Ampere), fp16 or bf16; bytes/s of its memory."""

    name: str
    fp32: float
    tf32: float | None
    half: float
    memory_bytes_per_second: float
    source: str

    def peak(self, form: Format) -> float:
        """FLOP/s in `form`; TF32 on a card without it is fp32.

        >>> gpu("A100").peak("half") / 1e12
        312.0
        """
        if form == "tf32":
            return self.tf32 or self.fp32
        return self.fp32 if form == "fp32" else self.half


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What training reached on a card.

    - `eta`: share of the peak that products of matrices reach, without communication; a transformer of hidden
      size h reaches ``eta * h / (h + half_width)``;
    - `attention`: how much longer the attention term takes than its FLOPs say, 1 for no longer;
    - `launch_seconds`: least time of a layer's forward and backward, however small, because its kernels are
      launched one by one; 0 where that was not seen;
    - `fixed_seconds`: of each step beside forward, backward, messages and the update of the weights;
    - `exposed`: least share of the gradients' messages that does not hide behind backward;
    - `error`: what predictions of `layouts` ("ddp", "fsdp") were found to be off by; both empty where nothing
      was held against them.
    """

    gpu: str
    software: str
    form: Format
    model: ModelKind
    eta: float
    half_width: float = 0.0
    attention: float = 1.0
    launch_seconds: float = 0.0
    fixed_seconds: float = 0.0
    exposed: float = 0.3
    kind: Kind = "estimate"
    layouts: str = ""
    error: str = ""
    source: str = ""


@cache
def gpu(name: str) -> Gpu:
    """The card of that name, as the catalogue spells it.

    Raises:
        UserError: a card without figures; the message lists those that have some.
    """
    known = {found.name.lower(): found for found in _gpus()}
    found = known.get(str(name).strip().lower())
    if found is None:
        names = ", ".join(each.name for each in _gpus())
        raise UserError(f"gpu = {name!r}: no peak FLOP/s in data/gpus.csv; known are {names}")
    return found


@cache
def calibration(
    name: str, form: Format = "half", model: ModelKind = "transformer", software: str = "eager"
) -> Calibration:
    """The best row for that card, precision, kind of model and software ("eager", "fused" or "compiled").

    >>> found = calibration("H100")
    >>> found.kind, found.eta
    ('measured', 0.39)
    >>> calibration("T4").kind, calibration("A100", software="compiled").kind
    ('estimate', 'estimate')

    Raises:
        UserError: a card without figures, or unknown software.
    """
    card = gpu(name)
    if software not in ("eager", "fused", "compiled"):
        raise UserError(f"software = {software!r}: use 'eager', 'fused' or 'compiled'")
    rows = [row for row in _rows() if (row.model, row.form) == (model, form)]
    own = [row for row in rows if row.gpu == card.name]
    exact = [row for row in own if row.software == software]
    if exact:
        return exact[0]
    near = own[0] if own else next(row for row in rows if row.gpu == "any")
    what = "" if near.gpu == "any" else f"taken from {near.software} on this card: "
    return replace(
        near, gpu=card.name, software=software, form=form, kind="estimate", layouts="", error="",
        launch_seconds=0.0 if software == "compiled" else near.launch_seconds,
        source=f"{what}{near.source}",
    )  # fmt: skip


@cache
def _gpus() -> tuple[Gpu, ...]:
    with (DATA / "gpus.csv").open(newline="", encoding="utf-8") as file:
        return tuple(
            Gpu(
                row["gpu"],
                float(row["fp32_tflops"]) * 1e12,
                float(row["tf32_tflops"]) * 1e12 if row["tf32_tflops"] else None,
                float(row["half_tflops"]) * 1e12,
                float(row["memory_gb_per_second"]) * 1e9,
                row["source"],
            )
            for row in csv.DictReader(file)
        )


@cache
def _rows() -> tuple[Calibration, ...]:
    with (DATA / "calibrations.csv").open(newline="", encoding="utf-8") as file:
        return tuple(_from_row(row) for row in csv.DictReader(file))


def _from_row(row: dict[str, str]) -> Calibration:
    form: Format = row["format"]  # type: ignore[assignment]
    model: ModelKind = row["model"]  # type: ignore[assignment]
    return Calibration(
        gpu=row["gpu"],
        software=row["software"],
        form=form,
        model=model,
        eta=float(row["eta"]),
        half_width=float(row["half_width"]),
        attention=float(row["attention"]),
        launch_seconds=float(row["launch_ms"]) * 1e-3,
        fixed_seconds=float(row["fixed_ms"]) * 1e-3,
        exposed=float(row["exposed"]),
        kind="measured" if row["kind"] == "measured" else "estimate",
        layouts=row["layouts"],
        error=row["error"],
        source=row["source"],
    )
