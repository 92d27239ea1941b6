"""How far all-reduce times are off on published measurements: a part of ``benchmarks.accuracy``.

- Of every system with at least 5 sizes from 1 MiB to 1 GiB the 1st, 3rd, ... are fitted and the 2nd, 4th,
  ... scored: ``collectives_mape``. With the halves swapped, and with a plain ``alpha + k S / B``: beside it.
- A system with fewer sizes that is also in ``benchmarks/data`` is fitted on the rows there, and its others
  are scored: ``collectives_mape_fitted_here``. Where nothing else is, it is ``collectives_mape`` too.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.common import Figure, say
from benchmarks.run_table import BYTES, MICROSECONDS, number, place, read_rows, whole
from dtlab.cost.collective_fit import every_second, fit_link, relative_errors
from dtlab.cost.collective_time import sent_share
from dtlab.errors import UserError

DATA = Path(__file__).parent / "data"
MIB, GIB = 2**20, 2**30
Row = Mapping[str, str]
Scored = dict[str, Figure]
Points = list[tuple[float, float]]


def mape(errors: Sequence[float]) -> float | None:
    """Mean |error|; None of nothing."""
    return sum(map(abs, errors)) / len(errors) if errors else None


def collective_scores(rows: Iterable[Row], *, aloud: bool = False) -> tuple[dict[str, Figure], list[Scored]]:
    """``collectives_mape`` and what stands beside it, and every scored size."""
    here = systems(read_rows(DATA / "published-collectives.csv"))
    scored: list[Scored] = []
    swapped: list[float] = []
    plain: list[float] = []
    fitted_here: list[float] = []
    left_out: list[str] = []
    for (system, ranks), points in systems(rows, left_out).items():
        if len({size for size, _ in points}) < 5:
            known = here.get((system, ranks), [])
            new = [point for point in points if point not in known]
            if len({size for size, _ in known}) >= 5 and new:
                fitted_here += relative_errors(fit_link(known, ranks).link, new, ranks)
            continue
        fitted, held = every_second(points)
        errors = relative_errors(fit_link(fitted, ranks).link, held, ranks)
        scored += [
            {"system": system, "bytes": size, "seconds": seconds, "error": error}
            for (size, seconds), error in zip(held, errors, strict=True)
        ]
        swapped += relative_errors(fit_link(held, ranks).link, fitted, ranks) if len(held) > 1 else []
        plain += _plain_errors(fitted, held, ranks)
    own = [float(row["error"] or 0) for row in scored]
    figures: dict[str, Figure] = {
        "collectives_mape": mape(own or fitted_here),
        "collectives_worst": max(map(abs, own or fitted_here), default=None),
        "collectives_held_out": len(own or fitted_here),
        "collectives_systems": len({row["system"] for row in scored}),
        "collectives_mape_other_half_held_out": mape(swapped),
        "collectives_mape_plain_alpha_beta": mape(plain),
        "collectives_mape_fitted_here": mape(fitted_here),
        "collectives_rows_left_out": len(left_out),
    }
    for line in left_out if aloud else []:
        say(f"left out of collectives: {line}")
    return figures, scored


def systems(rows: Iterable[Row], left_out: list[str] | None = None) -> dict[tuple[str, int], Points]:
    """(bytes, seconds) of all-reduces from 1 MiB to 1 GiB by system and number of ranks.

    Args:
        left_out: takes a line for each all-reduce that cannot be used.
    """
    found: dict[tuple[str, int], Points] = defaultdict(list)
    for at, row in enumerate(rows, 1):
        if re.sub("[ _-]", "", row["collective"].lower()) != "allreduce" or not row["time_us"]:
            continue
        try:
            size, ranks = number(row, "size_bytes", units=BYTES), whole(row, "n_ranks")
            micros = number(row, "time_us", units=MICROSECONDS)
            if size is None or ranks is None or micros is None:
                blank = "size_bytes" if size is None else "n_ranks"
                raise UserError(f"{blank} is blank: give the bytes of a rank and the number of ranks")
            if not 0 < micros < 1e12:
                raise UserError(f"time_us = {micros:g}: give the microseconds of one all-reduce, above 0")
            if ranks < 2 or size < 0:
                raise UserError(f"n_ranks = {ranks}, size_bytes = {size:g}: give 2 ranks or more and bytes")
        except UserError as error:
            if left_out is not None:
                left_out.append(f"{place(row, at)}: {error}")
            continue
        if MIB <= size <= GIB:
            found[row["system"], ranks].append((size, micros * 1e-6))
    return found


def _plain_errors(fitted: Points, held: Points, ranks: int) -> list[float]:
    """The textbook's ``alpha + k S / B`` by least squares of the relative error."""
    share = sent_share("all_reduce", ranks)
    rows = [(1 / t, share * size / t) for size, t in fitted]
    uu, uv, vv = sum(u * u for u, _ in rows), sum(u * v for u, v in rows), sum(v * v for _, v in rows)
    u1, v1 = sum(u for u, _ in rows), sum(v for _, v in rows)
    alpha, beta = (u1 * vv - v1 * uv) / (uu * vv - uv * uv), (v1 * uu - u1 * uv) / (uu * vv - uv * uv)
    return [(alpha + beta * share * size) / seconds - 1 for size, seconds in held]
