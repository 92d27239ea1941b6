"""How far are the predictions of memory and time from runs that others measured and published?

```
python -m benchmarks.accuracy                          # the runs in benchmarks/data
python -m benchmarks.accuracy --runs FILE --json       # a table of your own; columns in measured_memory.py
python -m benchmarks.accuracy --runs FILE --rows OUT   # and each row's prediction as CSV
```

- memory_mape, memory_mape_pp: mean |predicted / measured - 1| of peak memory, tensor-parallel up to 8,
  without and with pipeline. Targets: 0.08 and 0.14. memory_bias, memory_bias_pp: the mean with its sign.
- unsafe_fits_share: of all pairs of a row and a card of 16, 24, 32, 40, 48, 80 GiB, those where the verdict
  is "fits" and more was measured than the card has. Target: below 0.02. unsafe_without_headroom_share: the
  same for "predicted below the card".
- memory_mape_held_out: two numbers, `Program.layers_ahead` and `lead_share`, were chosen with these rows in
  sight. Here they are chosen anew on the other models, and each model is scored with the choice of the
  others. Everything else is counted from shapes and from the programs' sources, and is fitted to nothing.
- memory_mape_torchtitan: FSDP, with TP and PP, full recomputation; the table shows what was reserved, above
  what was allocated. memory_mape_bert: one card, fp32 and AMP; its two factors were chosen on these five
  rows.
- step_mape, collectives_mape and their kin: `benchmarks.accuracy_time` says on which rows constants were
  fitted. A table has what its columns allow: memory, step times, or collectives.
"""

import argparse
import csv
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy_collectives import collective_scores
from benchmarks.accuracy_time import NOTES, other_scores, step_scores
from benchmarks.common import Figure, report, say
from benchmarks.measured_memory import PEAKS, Run, has_peak, read_runs, runs_of
from benchmarks.run_table import read_rows
from dtlab.cost.memory import FITS_BELOW
from dtlab.cost.programs import NANOTRON, Program
from dtlab.cost.units import GIB
from dtlab.errors import UserError
from dtlab.files import appears_whole

DATA = Path(__file__).parent / "data"
RUNS, OTHER_RUNS = DATA / "h100-nanotron-runs.csv", DATA / "published-memory.csv"
CARDS_GIB = (16, 24, 32, 40, 48, 80)
# Mean |error| of other calculators on rows of the same table (1,746 of it), by the note that collected them:
# EleutherAI cookbook 827ee3b, Megatron-LM d98e8a6, ultrascale playbook memory.js, llm-analysis d841e40,
# accelerate d04c101. They were written for other programs than the one measured here.
OTHERS = {
    "EleutherAI, no recomputation": (8.72, 12.57),
    "EleutherAI -ca -pa": (0.97, 1.86),
    "Megatron-LM": (0.36, 0.46),
    "ultrascale memory.js": (0.79, 1.98),
    "llm-analysis": (0.46, 0.39),
    "accelerate": (0.68, 1.76),
}
COLLECTIVES = {"system", "collective", "size_bytes", "time_us", "n_ranks"}
# What decides most, and what a table without such a column is taken to say.
ASSUMED = {
    ("tp",): "tp = 1",
    ("pp",): "pp = 1",
    ("zero", "sharding"): "no sharding",
    ("dp", "n_gpus"): "dp = 1",
    ("act_ckpt", "recompute"): "no recomputation",
    ("precision",): "bf16",
    ("grad_accum", "gbs_seqs", "global_batch"): "one micro-batch",
    ("seq_len", "seq_len_or_image"): "the model's own length",
}
AHEAD, SHARES = (0, 16, 32, 48, 64), (0.0, 0.5, 1.0)


def mean(values: Iterable[float]) -> float | None:
    """The mean, or None of nothing: no row is no error of 0."""
    found = list(values)
    return sum(found) / len(found) if found else None


def mape(runs: Iterable[Run]) -> float | None:
    """Mean |predicted / measured - 1|."""
    return mean(abs(run.error) for run in runs)


def without_pipeline(run: Run) -> bool:
    return run.strategy.pp == 1 and run.strategy.tp <= 8


def with_pipeline(run: Run) -> bool:
    return run.strategy.pp > 1 and run.strategy.tp <= 8


def unsafe_share(runs: list[Run], below: float) -> float | None:
    """Pairs of row and card that are predicted below `below` of the card and measured above it."""
    pairs = [(run, card * GIB) for run in runs for card in CARDS_GIB]
    return mean(run.predicted < below * card and run.measured_bytes > card for run, card in pairs)


def held_out(runs: list[Run]) -> tuple[float | None, float | None]:
    """`mape` of nanotron without and with pipeline, each model with numbers chosen on the other models."""
    ours = [run for run in runs if run.program == NANOTRON and run.strategy.tp <= 8]
    choices = [replace(NANOTRON, layers_ahead=ahead, lead_share=share) for ahead in AHEAD for share in SHARES]
    errors: dict[Program, list[float]] = {
        choice: [abs(run.predicted_bytes(choice) / run.measured_bytes - 1) for run in ours]
        for choice in choices
    }
    models = {run.model.name for run in ours}
    if len(models) < 2:
        return None, None
    scored: dict[bool, list[float]] = {False: [], True: []}
    for name in models:
        others = [at for at, run in enumerate(ours) if run.model.name != name]
        best = min(choices, key=lambda choice: sum(errors[choice][at] for at in others))
        for at, run in enumerate(ours):
            if run.model.name == name:
                scored[with_pipeline(run)].append(errors[best][at])
    return mean(scored[False]), mean(scored[True])


def memory_figures(runs: list[Run], num_left_out: int) -> dict[str, Figure]:
    """What is printed about memory."""
    plain = [run for run in runs if without_pipeline(run)]
    piped = [run for run in runs if with_pipeline(run)]
    scored = plain + piped
    plain_held_out, piped_held_out = held_out(runs)
    return {
        "memory_rows": len(plain),
        "memory_rows_pp": len(piped),
        "memory_rows_left_out": num_left_out,
        "memory_mape": mape(plain),
        "memory_mape_pp": mape(piped),
        "memory_bias": mean(run.error for run in plain),
        "memory_bias_pp": mean(run.error for run in piped),
        "memory_mape_tp_above_8": mape(run for run in runs if run.strategy.tp > 8),
        "memory_mape_held_out": plain_held_out,
        "memory_mape_pp_held_out": piped_held_out,
        "unsafe_fits_share": unsafe_share(scored, FITS_BELOW),
        "unsafe_without_headroom_share": unsafe_share(scored, 1.0),
    }


def by_group(runs: list[Run]) -> list[str]:
    """One line for each model, and for each degree of tensor and pipeline parallelism."""
    lines = []
    groups: dict[str, list[Run]] = {}
    for run in runs:
        s = run.strategy
        piped = "pp 1" if s.pp == 1 else "pp above 1"
        keys = [f"tp {s.tp:>2}, {piped}"]
        if s.tp <= 8:
            keys.append(f"{run.model.name} ({run.name}), {piped}, tp to 8")
        for key in keys:
            groups.setdefault(key, []).append(run)
    for key, members in sorted(groups.items()):
        errors = [run.error for run in members]
        size, bias = sum(map(abs, errors)) / len(errors), sum(errors) / len(errors)
        lines.append(f"{key:<46} {len(errors):>5} rows  MAPE {size:6.1%}  bias {bias:+6.1%}")
    return lines


def write_rows(path: Path, runs: list[Run]) -> None:
    """Each row's prediction beside what was measured, in GiB."""
    with appears_whole(path, "rows") as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("line", "program", "model", "tp", "pp", "dp", "measured_gib", "predicted_gib", "error")
        )
        for run in runs:
            s, sizes = run.strategy, (run.measured_bytes / GIB, run.predicted / GIB)
            sizes_text = [f"{size:.3f}" for size in sizes]
            writer.writerow(
                (run.line, run.name, run.model.name, s.tp, s.pp, s.dp, *sizes_text, f"{run.error:.4f}")
            )


def time_figures(path: Path | None) -> dict[str, Figure]:
    """What `accuracy_time` says of a table, by its columns; without one of the tables in benchmarks/data.

    A table without columns for it leaves step_mape or collectives_mape None. Of a table in the columns of
    published-runs.csv step_mape is other_mape: all decoders without pipeline on at most 128 cards.
    """
    figures: dict[str, Figure] = {"step_mape": None, "collectives_mape": None}
    for wanted, score, own in (
        (lambda names: {"model", "mbs", "tokens_per_s"} <= names, step_scores, RUNS),
        (lambda names: names >= COLLECTIVES, collective_scores, DATA / "published-collectives.csv"),
        (lambda names: "model" in names and _has_speed(names), other_scores, DATA / "published-runs.csv"),
    ):
        rows = read_rows(path or own)
        if rows and wanted(set(rows[0])):
            figures |= score(rows, aloud=path is not None)[0]
    if path and figures["step_mape"] is None:
        figures["step_mape"] = figures.get("other_mape")
    return figures


def _has_speed(names: set[str]) -> bool:
    return "throughput" in names or ("tokens_per_s" in names and "mbs" not in names)


def memory_of(path: Path | None) -> tuple[list[Run], dict[str, Figure], list[str]]:
    """Runs of a table, the figures of memory, and lines for people. No runs where no row has a peak."""
    rows = read_rows(path or RUNS)
    with_peak = [row for row in rows if has_peak(row)]
    if not with_peak or "model" not in with_peak[0]:
        return [], {"memory_mape": None, "memory_mape_pp": None}, []
    runs, left_out = runs_of(with_peak)
    for line in left_out if path else []:
        say(f"left out: {line}")
    without = len(rows) - len(with_peak)
    if path and without:
        say(f"left out of memory: {without} rows without a peak ({', '.join(PEAKS)})")
    figures = memory_figures(runs, len(left_out) + without)
    if not path:
        others, _ = read_runs(OTHER_RUNS)
        for key, name in (("torchtitan", "torchtitan"), ("bert", "torch")):
            figures[f"memory_mape_{key}"] = mape(run for run in others if run.name == name)
            figures[f"memory_bias_{key}"] = mean(run.error for run in others if run.name == name)
    lines = ["memory by model and by degrees:", *("  " + line for line in by_group(runs))]
    if not path:
        lines += ["other calculators on this table, without and with pipeline (mean |error|):"]
        lines += [f"  {name:<32} {plain:7.0%} {piped:7.0%}" for name, (plain, piped) in OTHERS.items()]
    return runs, figures, lines


def check_columns(path: Path) -> None:
    """Refuse a table of which nothing can be scored, and say which rows have moved columns.

    Raises:
        UserError: no rows, or the columns of no table that is known here.
    """
    moved: list[str] = []
    rows = read_rows(path, moved)
    for line in moved:
        say(f"left out: {line}")
    if not rows:
        raise UserError(f"runs = {str(path)!r}: has no rows; give a header and a row for each run")
    names = set(rows[0])
    if "model" not in names and not names >= COLLECTIVES:
        first = ", ".join(list(rows[0])[:4])
        raise UserError(
            f"runs = {str(path)!r}: has no column 'model', and not those of collectives "
            f"({', '.join(sorted(COLLECTIVES))}); found {first:.80}, separated by commas"
        )
    assumed = [taken for columns, taken in ASSUMED.items() if not names & set(columns)]
    if "model" in names and assumed:
        say(f"taken for want of a column: {', '.join(assumed)}")
    if names >= COLLECTIVES or _has_speed(names) or names & {*PEAKS, "measured_value", "tokens_per_s"}:
        return
    raise UserError(
        f"runs = {str(path)!r}: has no column of what was measured; give {' or '.join(PEAKS[:2])} in GiB, "
        "tokens_per_s, or throughput with throughput_unit"
    )


def check_scored(path: Path, num_rows: int, figures: dict[str, Figure]) -> None:
    """Refuse a table of which no row was used.

    Raises:
        UserError: none was.
    """
    used = ("step_rows", "pipeline_rows", "other_rows", "collectives_held_out")
    if not num_rows and not any(figures.get(name) for name in used):
        raise UserError(
            f"runs = {str(path)!r}: no row can be scored; a line above names what is wrong with each, "
            "and the first lines of benchmarks/measured_memory.py say what the columns hold"
        )


def main(argv: list[str] | None = None) -> None:
    about = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=about)
    parser.add_argument("--runs", type=Path, help="CSV of measured runs; columns in measured_memory.py")
    parser.add_argument("--rows", type=Path, help="write each row's prediction of memory to this CSV file")
    parser.add_argument("--json", action="store_true", help="one flat JSON object")
    given = parser.parse_args(argv)
    if given.runs:
        check_columns(given.runs)
    runs, figures, lines = memory_of(given.runs)
    figures |= time_figures(given.runs)
    if given.runs:
        check_scored(given.runs, len(runs), figures)
    if given.rows:
        write_rows(given.rows, runs)
    report("Predictions against published runs", figures, [*lines, *NOTES])


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
