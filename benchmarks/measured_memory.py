"""A row of a table of measured runs as model, strategy and program: what the prediction needs, and no guess.

Columns, by any of their names; what is blank takes the default, and what has no default is an error of that
row:

| what | columns | blank means |
|---|---|---|
| model | model, params; or layers, hidden, ffn, heads, kv_heads, vocab, tied | an error |
| ranks | n_gpus, dp, tp, pp | tp = pp = 1; dp = n_gpus / (tp * pp), or 1 without n_gpus |
| sharing out | zero, sharding ("ZeRO-1", "FSDP2 8", "FULL_SHARD", "DDP") | 0: replicas |
| micro-batch | mbs, micro_batch | an error |
| micro-batches of a step | grad_accum, else gbs_seqs or global_batch / (dp * micro-batch) | 1 |
| tokens | seq_len, seq_len_or_image ("32k"); "CP n" in the notes divides them | the model's own |
| numbers | precision | as "BF16"; nanotron: bf16 with fp32 gradients, which its "BF16" means too |
| recomputation | act_ckpt, recompute | none; torchtitan: an error |
| schedule | schedule, stages_per_rank | 1F1B |
| sync of accumulated gradients | sync ("every", "last"), or "no sync" in the notes | every micro-batch |
| measured | gpu_mem_gib, measured_GiB, peak_mem_gib, peak_mem_gb (GiB, as those tables say) | an error |
| | or measured_value with its unit | |

- "BF16" under FSDP is fp32 weights computed in bf16 (16 bytes a parameter with Adam), elsewhere bf16 weights
  with an fp32 master copy (16); "pure BF16" is bf16 throughout (8); "+ fp32 grad" makes 18; "FP32" and "TF32"
  16.
- The program is told from source, series, model and notes. Tables with a column mbs are nanotron's: rank 0
  was measured, with sequence parallelism. KempnerForge: pure bf16, one sync a step, logits not cut, in a
  pipeline no sequence parallelism and a whole head. torchtitan cuts the micro-batch column into
  pp micro-batches, context-parallel ranks share shards, and it compiles the blocks, not the loss. Others:
  torch's own, and with "compile" in the row a compiled loss.
- The fullest rank is predicted where the table does not say rank 0. nvidia-smi shows the CUDA context too.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.run_table import MEMORY, TOKENS, number, place, read_rows, whole
from benchmarks.shapes import shape_of
from dtlab.cost.presets import Preset
from dtlab.cost.programs import KEMPNER_FORGE, MEGATRON, NANOTRON, TORCH, Program
from dtlab.cost.rank_memory import fullest, rank_memory
from dtlab.cost.strategy import Recompute, Strategy
from dtlab.cost.units import GIB
from dtlab.errors import UserError

NOT_A_RANK = (
    "parameter memory",
    "activation memory",
    "checkpoint size",
    "total model",
    "after init",
    "1st forward",
)
MOST_GIB = 512  # no card has more: a larger number is in another unit, or of several cards
PEAKS = ("gpu_mem_gib", "measured_gib", "peak_mem_gib", "peak_mem_gb")
UNSUPPORTED = ("offload", "ulysses", "adafactor", "muon", "8-bit")


@dataclass(frozen=True)
class Run:
    """One measured run, ready to be predicted."""

    line: int
    model: Preset
    strategy: Strategy
    program: Program
    seq_len: int
    context_gib: float
    rank_0: bool
    measured_bytes: float
    name: str

    def predicted_bytes(self, program: Program | None = None) -> float:
        """Peak of the rank that was measured; with another program's habits where one is given."""
        bills = rank_memory(
            self.model, self.strategy, program=program or self.program, seq_len=self.seq_len,
            context_gib=self.context_gib,
        )  # fmt: skip
        return float(bills[0].total if self.rank_0 else fullest(bills)[1].total)

    @cached_property
    def predicted(self) -> float:
        """Peak bytes of the rank that was measured."""
        return self.predicted_bytes()

    @property
    def error(self) -> float:
        """Predicted over measured, less 1: below 0 is too low."""
        return self.predicted / self.measured_bytes - 1


def read_runs(path: Path) -> tuple[list[Run], list[str]]:
    """The runs of a table, and one line for each row that is left out, with the reason.

    Raises:
        UserError: no such file, or no table with a header.
    """
    left_out: list[str] = []
    rows = read_rows(path, left_out)
    if not rows or "model" not in rows[0]:
        raise UserError(f"runs = {str(path)!r}: has no column 'model'; see benchmarks/measured_memory.py")
    runs, more = runs_of(rows)
    return runs, left_out + more


def runs_of(rows: Iterable[Mapping[str, str]]) -> tuple[list[Run], list[str]]:
    """The same of rows that were read."""
    runs, left_out = [], []
    for at, row in enumerate(rows, 1):
        try:
            runs.append(_run(row, getattr(row, "line", at)))
        except UserError as error:
            left_out.append(f"{place(row, at)}: {error}")
    return runs, left_out


def has_peak(row: Mapping[str, str]) -> bool:
    """Whether a row says how much memory was measured."""
    return any(row.get(name) for name in PEAKS) or bool(row.get("measured_value") and row.get("unit"))


def measured_gib(row: Mapping[str, str]) -> float | None:
    """The peak that was measured; None where no column has one.

    Raises:
        UserError: no number of GiB that a card has.
    """
    found = number(row, *PEAKS, units=MEMORY)
    if found is None and has_peak(row):
        with_unit = {"measured_value": f"{row['measured_value']} {row['unit']}"}
        found = number(with_unit, "measured_value", units={**MEMORY, "gb": 1e9 / GIB, "mb": 1e6 / GIB})
    if found is not None and not 0 < found <= MOST_GIB:
        name = next(name for name in (*PEAKS, "measured_value") if row.get(name))
        raise UserError(f"{name} = {row[name]!r}: give the GiB of one card, above 0 and up to {MOST_GIB}")
    return found


def _run(row: Mapping[str, str], line: int) -> Run:
    words = " ".join(
        row.get(name, "") for name in ("series", "source", "model", "sharding", "notes", "metric")
    )
    words = words.lower()
    if row.get("exclude_reason") == "batch_mismatch":
        raise UserError("exclude_reason = 'batch_mismatch': what ran is not what the row says")
    for word in UNSUPPORTED:
        if word in words:
            raise UserError(f"{word!r}: is not predicted")
    if any(word in row.get("metric", "").lower() for word in NOT_A_RANK):
        raise UserError(f"metric = {row['metric']!r}: is not the peak of a rank")
    measured = measured_gib(row)
    if measured is None:
        raise UserError("gpu_mem_gib (measured_GiB, peak_mem_gb) is blank: nothing to compare with")
    name = program_name(row, words)
    model = shape_of(row, name)
    context = re.search(r"\bcp (\d+)", row.get("notes", "").lower())
    cp = int(context.group(1)) if context else 1
    seq_len = tokens_of(row) or model.seq_len
    if seq_len % cp:
        raise UserError(f"seq_len = {seq_len} with CP {cp}: does not divide")
    strategy = strategy_of(row, name, words, cp)
    nvml = re.search(r"nvml|nvidia-smi", words)
    run = Run(
        line, model, strategy, _program(name, strategy), seq_len // cp,
        (1.3 if "v100" in row.get("gpu", "").lower() else 1.0) if nvml else 0.0,
        name == "nanotron", measured * GIB, name,
    )  # fmt: skip
    assert run.predicted > 0  # what cannot be predicted is refused here, with its line
    return run


def program_name(row: Mapping[str, str], words: str) -> str:
    if "mbs" in row:
        return "nanotron"
    known = ("nanotron", "kempner", "torchtitan", "megatron")
    return next((name for name in known if name in words), "torch")


def _program(name: str, strategy: Strategy) -> Program:
    if name == "kempner":
        return replace(KEMPNER_FORGE, cuts_head=strategy.pp == 1)
    if name == "torchtitan":
        return replace(TORCH, root_unit=False)
    return {"nanotron": NANOTRON, "megatron": MEGATRON}.get(name, TORCH)


def strategy_of(row: Mapping[str, str], name: str, words: str, cp: int) -> Strategy:
    tp, pp = whole(row, "tp") or 1, whole(row, "pp") or 1
    gpus, dp = whole(row, "n_gpus"), whole(row, "dp")
    if dp is None:
        if gpus is not None and gpus % (tp * pp * cp):
            raise UserError(f"dp is blank and n_gpus = {gpus} is no multiple of tp {tp} x pp {pp} x cp {cp}")
        dp = gpus // (tp * pp * cp) if gpus is not None else 1
    if gpus is not None and gpus != dp * tp * pp * cp:
        raise UserError(f"n_gpus = {gpus} is not dp {dp} x tp {tp} x pp {pp} x cp {cp}")
    zero, shards, keeps = _sharding(row, dp, cp)
    micro_batch = whole(row, "mbs", "micro_batch")
    if micro_batch is None:
        raise UserError("mbs (micro_batch) is blank: give the samples of one forward pass")
    num_micro_batches = _micro_batches(row, dp, micro_batch)
    if name == "torchtitan" and pp > 1:
        if micro_batch % pp:
            raise UserError(f"micro_batch = {micro_batch} is not cut by pp = {pp}, as torchtitan does")
        micro_batch, num_micro_batches = micro_batch // pp, num_micro_batches * pp
    kempner = name == "kempner"
    return Strategy(
        dp_replicate=dp * cp // shards, dp_shard=shards, tp=tp, pp=pp, zero=zero,  # type: ignore[arg-type]
        micro_batch=micro_batch, num_micro_batches=num_micro_batches,
        recompute=_recompute(row, name), **_schedule(row, pp), **_precision(row, name, zero),
        sequence_parallel=tp > 1 and not (kempner and pp > 1),
        loss_parallel=not kempner,
        sync_every_micro_batch=not (kempner or _last_sync(row, words)),
        reshard_after_forward=not keeps,
        compiled=name == "torch" and "compile" in words + row.get("precision", "").lower(),
    )  # fmt: skip


def _sharding(row: Mapping[str, str], dp: int, cp: int) -> tuple[int, int, bool]:
    """ZeRO stage, ranks of a shard (context-parallel ones too), and whether weights stay gathered."""
    text = row.get("zero") or row.get("sharding") or "0"
    lower = text.lower()
    stage = re.fullmatch(r"(?:zero[- ]?)?([0-3])(?:\.0+)?", lower)
    fsdp = re.search(r"(?:fsdp2?|dp_shard)[\s=x]*(\d+)?|full_shard|full shard|hsdp|shard_grad_op", lower)
    if fsdp:
        given = fsdp.group(1)
        shards = int(given) if given else dp
        if dp % shards:
            raise UserError(f"sharding = {text!r}: {shards} does not divide the {dp} data-parallel ranks")
        return 3, shards * cp, "shard_grad_op" in lower
    if stage:
        zero = int(stage.group(1))
        return zero, dp * cp if zero == 3 else 1, False
    if re.search(r"ddp|replicated|none|horovod|megatron|^no$|^dp$", lower):
        return 0, 1, False
    raise UserError(f"sharding = {text!r} is unknown: use ZeRO-0 to ZeRO-3, FSDP or DDP")


def _precision(row: Mapping[str, str], name: str, zero: int) -> dict[str, Any]:
    text = row.get("precision", "").lower()
    if name == "nanotron" and (not text or text == "bf16"):
        return {"precision": "bf16-mixed", "fp32_gradients": True}
    if name == "kempner" and not re.search(r"master|mixed|fp32 (param|weight)|^fp32", text):
        return {"precision": "bf16"}
    if "grad" in text and "fp32" in text and zero < 3:
        return {"precision": "bf16-mixed", "fp32_gradients": True}
    if re.search(r"pure|throughout|8 b/param|bf16 params", text):
        return {"precision": "bf16"}
    if re.match(r"(fp32|tf32|float32)(?!.*master)", text):
        return {"precision": "fp32"}
    if zero == 3 or "amp" in text:
        return {"precision": "amp"}
    if not text or re.search(r"bf16|fp16|mixed|fp8|float8|mxfp8", text):
        return {"precision": "bf16-mixed"}
    raise UserError(f"precision = {row['precision']!r} is unknown: use FP32, BF16, pure BF16 or AMP")


def _recompute(row: Mapping[str, str], name: str) -> Recompute:
    text = (row.get("act_ckpt") or row.get("recompute") or "").lower()
    if not text and name == "torchtitan":
        raise UserError("act_ckpt is blank: torchtitan recomputes by default, and what is not stated")
    text = text or "no"
    if text in ("no", "none", "false", "0"):
        return "none"
    if re.search(r"\bfull\b|^true|^yes|^1$|re-mat", text):
        return "full"
    if text == "selective" and name in ("megatron", "torch"):
        return "selective"
    raise UserError(
        f"act_ckpt = {text!r}: what it keeps is not stated; use no, full, or Megatron's selective"
    )


def _schedule(row: Mapping[str, str], pp: int) -> dict[str, Any]:
    text = row.get("schedule", "").lower()
    if pp == 1:
        return {}
    if "interleaved" in text or "vp " in text:
        stages = whole(row, "stages_per_rank") or int(
            (re.search(r"vp (\d+)|\((\d+)", text) or [0, 0])[1] or 2
        )
        return {"schedule": "interleaved", "stages_per_rank": stages} if stages > 1 else {}
    if "gpipe" in text:
        return {"schedule": "gpipe"}
    if not text or "1f1b" in text or text in ("fsdp", "none"):
        return {"schedule": "1f1b"}
    raise UserError(f"schedule = {text!r} is unknown: use 1F1B, GPipe or interleaved")


def _micro_batches(row: Mapping[str, str], dp: int, micro_batch: int) -> int:
    given = whole(row, "grad_accum")
    if given is not None:
        return given
    batch = whole(row, "gbs_seqs", "global_batch")
    if batch is None:
        return 1
    if batch % (dp * micro_batch):
        raise UserError(f"global_batch = {batch} is no multiple of dp {dp} x micro_batch {micro_batch}")
    return batch // (dp * micro_batch)


def _last_sync(row: Mapping[str, str], words: str) -> bool:
    return row.get("sync", "").lower() == "last" or bool(re.search(r"no[_ ]sync|without sync", words))


def tokens_of(row: Mapping[str, str]) -> int | None:
    return whole(row, "seq_len", "seq_len_or_image", units=TOKENS)
