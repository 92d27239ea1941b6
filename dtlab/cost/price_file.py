"""A price file of your own, whose figures go before those of the package (lesson 14).

It is a CSV with the columns of `COLUMNS`, one price a row, and if the machine type is not in the package's
table also those of `HARDWARE`:

    name,service,region,usd,unit,date,source,kind
    ml.g5.12xlarge,sagemaker,eu-west-1,7.91,USD/h,2026-11-30,our contract,on-demand
    EBS gp3 storage,storage,eu-west-1,0.088,USD/GB-month,2026-11-30,price list,on-demand
    g5.12xlarge,spot,eu-west-1,2.31,USD/h,2026-11-30,eu-west-1a,spot estimate

- `service` is "sagemaker", "ec2", "spot" (EC2) or "storage"; `unit` is USD/h where left blank, but not of
  storage.
- `kind` is "on-demand", "estimate" or "retired"; blank is "on-demand". Of spot it is "spot estimate", or
  blank: such a price moves. Several rows of one type and region are its zones, and their median counts.
- No price is 0 or below, and nothing but spot has two prices.
- Which file: the one given to a command (`--prices`), else the variable DTLAB_PRICES (empty: none), else
  `dtlab/prices.csv` in the user's configuration folder, where `dtlab prices refresh` writes.
"""

import csv
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from dtlab.cost.instance import did_you_mean
from dtlab.cost.prices import Kind, Price
from dtlab.errors import UserError

COLUMNS = ("name", "service", "region", "usd", "unit", "date", "source", "kind")
HARDWARE = ("gpus", "gpu", "gpu_memory_gib", "network_gbps")
SERVICES = ("sagemaker", "ec2", "spot", "storage")
_KINDS: tuple[Kind, ...] = ("on-demand", "estimate", "retired")
VARIABLE = "DTLAB_PRICES"
MOST_USD = 1e6
_given: ContextVar[Path | None] = ContextVar("price file", default=None)


@dataclass(frozen=True)
class PriceRow:
    """One row: which thing, of which service, at what price; hardware only for a type that is new."""

    name: str
    service: str
    price: Price
    gpus: int | None = None
    gpu: str = ""
    gpu_memory_gib: float | None = None
    network_gbps: float | None = None


@contextmanager
def prices_from(path: Path | str | None) -> Iterator[None]:
    """Inside the block prices come from this file first; None changes nothing.

    Raises:
        UserError: the file is missing or a row is wrong.
    """
    if path is None:
        yield
        return
    read_price_file(path)
    token = _given.set(Path(path))
    try:
        yield
    finally:
        _given.reset(token)


def default_path() -> Path:
    """Where `dtlab prices refresh` writes: `$XDG_CONFIG_HOME/dtlab/prices.csv`, else under `~/.config`."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "dtlab" / "prices.csv"


def active_path() -> Path | None:
    """The price file in use, or None. A file that was named must exist."""
    given = _given.get()
    if given is not None:
        return given
    named = os.environ.get(VARIABLE)
    if named is not None:
        if not named.strip():
            return None
        if not Path(named).is_file():
            raise UserError(f"{VARIABLE} = {named!r}: no such file; name a price file, or leave it empty")
        return Path(named)
    try:
        path = default_path()
        return path if path.is_file() else None
    except (RuntimeError, OSError):  # no home folder, or one that may not be read
        return None


def read_price_file(path: Path | str) -> tuple[PriceRow, ...]:
    """The rows of a price file.

    Raises:
        UserError: no such file, not UTF-8, a missing column, or a row that is wrong; it names the line.
    """
    where = f"price file = {str(path)!r}"
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or ()]
            missing = [name for name in ("name", "service", "region", "usd") if name not in columns]
            if missing:
                raise UserError(
                    f"{where}: no column {', '.join(missing)}; the first line is {','.join(COLUMNS)}"
                )
            twice = [name for name in columns if name and columns.count(name) > 1]
            if twice:
                raise UserError(f"{where}: two columns are named {twice[0]}; name each once")
            reader.fieldnames = columns
            lines = [(reader.line_num, _row(row, f"{where}, line {reader.line_num}")) for row in reader]
    except OSError as error:
        raise UserError(f"{where}: {error.strerror or error}; give a CSV file that can be read") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{where}: is no CSV in UTF-8 ({error}); save it as CSV") from None
    _refuse_contradictions(lines, where)
    return tuple(row for _, row in lines)


def _refuse_contradictions(lines: Iterable[tuple[int, PriceRow]], where: str) -> None:
    """Two prices of one thing: which of them counts nobody can know. Rows of spot are those of zones."""
    seen: dict[tuple[str, str, str], tuple[int, float]] = {}
    for line, row in lines:
        key = (row.service, row.name.lower(), row.price.region)
        before, usd = seen.setdefault(key, (line, row.price.usd))
        if row.service != "spot" and usd != row.price.usd:
            raise UserError(
                f"{where}, line {line}: {row.name} ({row.service}, {row.price.region}) costs "
                f"{row.price.usd:g} here and {usd:g} in line {before}; keep one"
            )


def write_price_file(path: Path, rows: Iterable[PriceRow]) -> None:
    """Write the rows, sorted, beside the old file and then in its place: no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((*COLUMNS, *HARDWARE))
        for row in sorted(rows, key=lambda row: (row.service, row.name, row.price.region)):
            price = row.price
            writer.writerow(
                (row.name, row.service, price.region, f"{price.usd:.10g}", price.unit, price.date,
                 price.source, price.kind, *("" if value is None else value for value in _hardware(row)))
            )  # fmt: skip
    os.replace(beside, path)


def merged(old: Iterable[PriceRow], new: Iterable[PriceRow]) -> list[PriceRow]:
    """Old rows with new ones in the place of those of the same thing, service and region; spot rows all."""
    rows = [*old, *new]
    found = {(row.service, row.name.lower(), row.price.region): row for row in rows if row.service != "spot"}
    return [*found.values(), *(row for row in rows if row.service == "spot")]  # each zone has a row


def _hardware(row: PriceRow) -> tuple[object, ...]:
    return row.gpus, row.gpu, row.gpu_memory_gib, row.network_gbps


def _row(raw: dict[str, str], where: str) -> PriceRow:
    row = {key: (value or "").strip() for key, value in raw.items() if isinstance(key, str)}
    if any(raw.get(None) or ()):  # type: ignore[call-overload]
        raise UserError(
            f"{where}: has more cells than the first line; put a cell that holds a comma in quotes"
        )
    name, service = row["name"], row["service"].lower()
    if not name:
        raise UserError(f"{where}: name is empty; give an instance type or a kind of storage")
    if service not in SERVICES:
        hint = did_you_mean(service, list(SERVICES))
        raise UserError(f"{where}: service = {row['service']!r}: give {', '.join(SERVICES)}{hint}")
    region = row["region"].lower()
    if not region:
        raise UserError(f"{where}: region is empty; give one such as eu-west-1")
    if len(region.split()) > 1:
        raise UserError(f"{where}: region = {row['region']!r}: give its short name, such as eu-west-1")
    kinds: tuple[Kind, ...] = ("spot estimate",) if service == "spot" else _KINDS
    kind = row.get("kind") or kinds[0]
    if kind not in kinds:
        raise UserError(f"{where}: kind = {kind!r} of {service}: give {', '.join(kinds)}")
    unit = row.get("unit") or ("USD/h" if service != "storage" else "")
    if service != "storage" and unit != "USD/h":
        raise UserError(f"{where}: unit = {unit!r}: an instance is priced in USD/h, the whole machine")
    if not unit:
        raise UserError(f"{where}: unit is empty; storage needs one such as USD/GB-month")
    usd = _number(row["usd"], "usd", where, least=0.0)
    assert usd is not None
    if usd > MOST_USD:
        raise UserError(
            f"{where}: usd = {usd:g}: give dollars of one {unit.removeprefix('USD/')}, at most 1e6"
        )
    price = Price(
        usd, unit, region, row.get("date", ""), row.get("source") or "your price file",
        next(known for known in kinds if known == kind),
    )  # fmt: skip
    gpus = _number(row.get("gpus") or None, "gpus", where, least=-1.0)
    if gpus is not None and gpus != int(gpus):
        raise UserError(f"{where}: gpus = {gpus:g}: give a whole number")
    return PriceRow(
        name if service == "storage" else name.lower().removeprefix("ml."),
        service,
        price,
        None if gpus is None else int(gpus),
        row.get("gpu", ""),
        _number(row.get("gpu_memory_gib") or None, "gpu_memory_gib", where, least=0.0),
        _number(row.get("network_gbps") or None, "network_gbps", where, least=0.0),
    )


def _number(text: str | None, field: str, where: str, *, least: float) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= least:
        raise UserError(f"{where}: {field} = {text!r}: give a number above {max(least, 0):g}")
    return value
