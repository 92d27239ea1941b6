"""Rows of ``published-runs.csv`` as step models: decoders without pipeline, in fp32, TF32, fp16 or bf16.

- llm-foundry's MPT: FSDP on A100 ("eager") and H100 ("fused"): their calibrations were fitted on such rows.
- Other programs (torchtitan, nanotron's playbook, KempnerForge) are read as ``benchmarks.measured_memory``
  does. "compile" in the row, and KempnerForge, take "compiled", the others "eager". Recomputation of
  single operations is taken as none.

Left out: fp8 and fp4, pipelines, tensor parallelism beyond 8, offload, and rows without tokens a second, or
whose model's shape is not known.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.measured_memory import UNSUPPORTED, program_name, strategy_of, tokens_of
from benchmarks.run_table import RATE, number, place, whole
from benchmarks.shapes import shape_of
from dtlab.cost.machines import machine
from dtlab.cost.presets import Preset
from dtlab.cost.step_time import StepModel
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError

Row = Mapping[str, str]
# llm-foundry's scripts/train/yamls/pretrain: layers, hidden
MPT = {
    "MPT-125m": (12, 768), "MPT-350m": (24, 1024), "MPT-760m": (24, 1536), "MPT-1b": (24, 2048),
    "MPT-3b": (32, 2560), "MPT-7b": (32, 4096), "MPT-13b": (40, 5120), "MPT-30b": (48, 7168),
    "MPT-70b": (80, 8192),
}  # fmt: skip
MACHINES = {
    "H100": "p5.48xlarge", "H200": "p5en.48xlarge", "A100": "p4de.24xlarge", "V100": "p3.16xlarge",
    "B200": "p6-b200.48xlarge",
}  # fmt: skip
NO_SPEED = "throughput in tokens/s is blank"
MOST_RANKS = 10**6


@dataclass(frozen=True)
class TimedRun:
    """A published run: its program, the model on its machine, and the measured seconds of a step."""

    program: str
    model: StepModel
    strategy: Strategy
    seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.model.seconds(self.strategy) / self.seconds - 1


def timed_runs(rows: Iterable[Row]) -> tuple[list[TimedRun], list[str]]:
    """The runs that can be predicted, and the reason for each row that cannot."""
    runs, left_out = [], []
    for at, row in enumerate(rows, 1):
        try:
            runs.append(_timed(row))
        except UserError as error:
            left_out.append(f"{place(row, at)}: {error}")
    return runs, left_out


def _timed(row: Row) -> TimedRun:
    words = " ".join(row.get(name, "") for name in ("series", "source", "model", "sharding", "notes")).lower()
    if any(word in row.get("precision", "").lower() for word in ("fp8", "fp4", "float8")):
        raise UserError(f"precision = {row['precision']!r}: has no calibration")
    if any(word in words for word in UNSUPPORTED):
        raise UserError("offload, another optimizer or sequence parallelism by heads is not predicted")
    gpu = card_of(row)
    if gpu is None:
        raise UserError(f"gpu = {row.get('gpu', '')!r}: has no calibration; known are {', '.join(MACHINES)}")
    speed = speed_of(row)
    if row.get("model") in MPT:
        preset, strategy, seq_len = _mpt(row)
        program, software = "llm-foundry", "fused" if gpu == "H100" else "eager"
    else:
        program = program_name(row, words)
        preset, seq_len = shape_of(row, program), tokens_of(row) or 0
        if not row.get("act_ckpt", "").lower().startswith(("full", "true", "yes")):
            row = {**row, "act_ckpt": "no"}
        strategy = strategy_of(row, program, words, 1)
        compiled = program == "kempner" or "compile" in words + row.get("precision", "").lower()
        software = "compiled" if compiled else "eager"
    if strategy.pp > 1 or strategy.tp > 8:
        raise UserError(f"pp = {strategy.pp}, tp = {strategy.tp}: step time is a bound, or refused")
    model = StepModel(preset, machine(MACHINES[gpu]), seq_len=seq_len or None, software=software)
    tokens = strategy.global_batch * model.work.seq_len
    if strategy.world_size > MOST_RANKS:
        raise UserError(f"n_gpus = {strategy.world_size}: give those of a real run")
    return TimedRun(program, model, strategy, tokens / speed)


def card_of(row: Row) -> str | None:
    """The card of `MACHINES` that the row names; None where it names another or none."""
    text = row.get("gpu", "").upper()
    return next((name for name in MACHINES if re.search(rf"(?<![A-Z0-9]){name}(?![0-9])", text)), None)


def speed_of(row: Row) -> float:
    """Tokens per second of all ranks.

    Raises:
        UserError: blank, of another unit, or of no real run.
    """
    name = "tokens_per_s" if row.get("tokens_per_s") else "throughput"
    found = number(row, name, units=RATE)
    unit = row.get("throughput_unit", "").lower()
    if found is None or (name == "throughput" and "tok" not in unit + row[name].lower()):
        raise UserError(f"{NO_SPEED}: throughput_unit = {unit!r}" if unit and found else NO_SPEED)
    if not 0 < found < 1e15:
        raise UserError(f"{name} = {row[name]!r}: give the tokens per second of all ranks, above 0")
    return found


def _mpt(row: Row) -> tuple[Preset, Strategy, int]:
    layers, hidden = MPT[row["model"]]
    sizes = {name: whole(row, name) for name in ("n_gpus", "params", "micro_batch", "grad_accum")}
    sizes["seq_len_or_image"] = tokens_of(row)
    for name, size in sizes.items():
        if size is None:
            raise UserError(f"{name} is blank: llm-foundry's runs are told by all of {', '.join(sizes)}")
    ranks, parameters, micro_batch, accumulated, seq_len = (size or 1 for size in sizes.values())
    preset = Preset(
        name=row["model"], family="gpt", parameters=parameters, formula="as published",
        source="llm-foundry", layers=layers, hidden=hidden, ffn=4 * hidden, heads=1, kv_heads=1,
        vocab=50368, seq_len=seq_len, tied=True,
    )  # fmt: skip
    strategy = Strategy(
        dp_shard=ranks, zero=3, micro_batch=micro_batch,
        num_micro_batches=accumulated,
        recompute="full" if row.get("act_ckpt", "").lower() == "true" else "none",
        reshard_after_forward="FULL" in row.get("sharding", "").upper(),
    )  # fmt: skip
    return preset, strategy, seq_len
