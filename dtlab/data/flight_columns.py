"""What is known of a flight before it leaves: schedule, traffic, aircraft and weather, as feature columns.

- ``derive`` is given only the columns of ``KNOWN_BEFORE``, and nothing that it makes depends on the order of
  the rows, which in the source follows the actual departure.
- Counts of scheduled departures include flights that were cancelled later.
- Weather is that of the scheduled hour and of the hours before it, never of a later one.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# What derive() may read of the departures. The rest of the source (dep_time, dep_delay, arr_time, arr_delay,
# air_time, and with them whether a flight was cancelled) is known only after departure.
KNOWN_BEFORE = (
    "month", "day", "sched_dep_time", "sched_arr_time", "carrier", "flight", "tailnum", "origin", "dest",
    "distance", "hour", "minute", "time_hour",
)  # fmt: skip
WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
PLANE = ("year", "manufacturer", "model", "engines", "seats", "engine")

# Dates around which people travel (2013), as (month, day).
HOLIDAYS = (
    (1, 1),
    (1, 21),
    (2, 18),
    (3, 31),
    (5, 27),
    (7, 4),
    (9, 2),
    (10, 14),
    (11, 28),
    (12, 25),
    (12, 31),
)


def derive(schedule: pa.Table, weather: pa.Table, planes: pa.Table) -> pa.Table:
    """The feature columns of every scheduled departure, from what is known before it leaves."""
    made = {
        **_schedule(schedule),
        **_traffic(schedule),
        **_weather(schedule, weather),
        **_plane(schedule, planes),
    }
    return pa.table(made)


def _ints(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).to_numpy().astype(np.int64)


def _codes(*arrays: pa.ChunkedArray | np.ndarray) -> np.ndarray:
    """One group number per row for the combinations of several columns."""
    total = np.zeros(len(arrays[0]), dtype=np.int64)
    for array in arrays:
        if isinstance(array, np.ndarray):
            codes = array - array.min()
        else:
            codes = array.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy() + 1
        total = total * (int(codes.max()) + 1) + codes
    return np.unique(total, return_inverse=True)[1]


def _clock(hhmm: np.ndarray) -> np.ndarray:
    return hhmm // 100 * 60 + hhmm % 100


def _days(table: pa.Table) -> np.ndarray:
    """Days since 31 December 2012."""
    months = np.array([datetime.date(2013, month, 1).toordinal() for month in range(1, 13)])
    return months[_ints(table, "month") - 1] + _ints(table, "day") - datetime.date(2013, 1, 1).toordinal()


def _schedule(table: pa.Table) -> dict[str, Any]:
    day = _days(table)
    leave = _clock(_ints(table, "sched_dep_time"))
    arrive = _clock(_ints(table, "sched_arr_time"))
    holidays = np.array([datetime.date(2013, m, d).timetuple().tm_yday for m, d in HOLIDAYS])
    offsets = day[:, None] - holidays[None, :]
    nearest = offsets[np.arange(len(day)), np.abs(offsets).argmin(axis=1)]
    return {
        "month": pc.cast(table.column("month"), pa.int8()),
        "day": pc.cast(table.column("day"), pa.int8()),
        "weekday": pa.array((day % 7).astype(np.int8)),  # 1 January 2013 was a Tuesday, number 1
        "day_of_year": pa.array(day.astype(np.int16)),
        "week": pa.array((day // 7).astype(np.int16)),
        "three_days": pa.array((day // 3).astype(np.int16)),
        "holiday_offset": pa.array(np.clip(nearest, -7, 7).astype(np.int8)),
        "hour": pc.cast(table.column("hour"), pa.int8()),
        "minute": pc.cast(table.column("minute"), pa.int8()),
        "departure_minute": pa.array(leave.astype(np.int16)),
        "arrival_minute": pa.array(arrive.astype(np.int16)),
        "block_minutes": pa.array(((arrive - leave) % 1440).astype(np.int16)),  # by the clocks of both places
        "distance": pc.cast(table.column("distance"), pa.int16()),
        "carrier": table.column("carrier"),
        "origin": table.column("origin"),
        "dest": table.column("dest"),
        "tailnum": table.column("tailnum"),
        "flight": pc.binary_join_element_wise(
            table.column("carrier"), pc.cast(table.column("flight"), pa.string()), ""
        ),
    }


def _traffic(table: pa.Table) -> dict[str, Any]:
    """How busy the airport is meant to be, and what the same aircraft is meant to have done that day."""
    day, hour = _days(table), _ints(table, "hour")
    leave = _clock(_ints(table, "sched_dep_time"))
    origin, carrier, dest = (table.column(name) for name in ("origin", "carrier", "dest"))

    def counted(*keys: Any) -> pa.Array:
        group = _codes(*keys)
        return pa.array(np.bincount(group)[group].astype(np.int16))

    at_airport = _codes(origin, day)
    known = table.column("tailnum").is_valid().combine_chunks().to_numpy(zero_copy_only=False)
    gap = np.where(known, _gap(_codes(table.column("tailnum")), day * 1440 + leave) / 60, np.nan)
    return {
        "departures_hour": counted(origin, day, hour),
        "departures_hour_carrier": counted(origin, carrier, day, hour),
        "departures_hour_city": counted(day, hour),
        "departures_hour_dest": counted(dest, day, hour),
        "departures_before": pa.array(_earlier(at_airport, leave).astype(np.int16)),
        "tail_before": pa.array(
            _earlier(_codes(table.column("tailnum"), day), leave).astype(np.int16), mask=~known
        ),
        "tail_gap_hours": pa.array(np.minimum(gap, 72).astype(np.float32), from_pandas=True),
    }


def _gap(group: np.ndarray, minute: np.ndarray) -> np.ndarray:
    """Minutes since the last earlier minute of the same group; NaN for the group's first."""
    span = int(minute.max()) + 1
    key = group * span + minute
    distinct = np.unique(key)
    before = distinct[np.maximum(np.searchsorted(distinct, key) - 1, 0)]
    return np.where(before // span == group, np.where(before < key, key - before, np.nan), np.nan)


def _earlier(group: np.ndarray, minute: np.ndarray) -> np.ndarray:
    """For each row, how many rows of its group have a smaller minute (rows of the same minute do not
    count)."""
    order = np.lexsort((minute, group))
    key = (group * 1440 + minute)[order]
    first = np.searchsorted(key, key)  # position of the first row of the same group and minute
    begin = np.searchsorted(group[order], group[order])
    count = np.empty(len(group), dtype=np.int64)
    count[order] = first - begin
    return count


def _weather(table: pa.Table, weather: pa.Table) -> dict[str, Any]:
    """Weather observed at the scheduled hour and origin, and how it changed over the hours before."""
    origins = ["EWR", "JFK", "LGA"]
    hours = weather.column("time_hour").cast(pa.int64()).to_numpy() // 3600
    wanted = table.column("time_hour").cast(pa.int64()).to_numpy() // 3600
    # The grid covers both: weather ends on 30 December, and a later flight has none rather than an older one.
    first, last = min(int(hours.min()), int(wanted.min())), max(int(hours.max()), int(wanted.max()))
    place = pc.index_in(weather.column("origin"), value_set=pa.array(origins)).to_numpy()
    grid = {}
    for name in WEATHER:
        values = np.full((len(origins), last - first + 1), np.nan, dtype=np.float32)
        values[place, hours - first] = weather.column(name).cast(pa.float64()).to_numpy()
        grid[name] = values
    grid["wind_speed"][grid["wind_speed"] > 200] = np.nan  # one reading of 1,048 mph
    grid["pressure_change_3h"] = grid["pressure"] - _back(grid["pressure"], 3)
    grid["temp_change_3h"] = grid["temp"] - _back(grid["temp"], 3)
    grid["precip_3h"] = _window(grid["precip"], 3, np.nansum)
    grid["precip_6h"] = _window(grid["precip"], 6, np.nansum)
    grid["precip_12h"] = _window(grid["precip"], 12, np.nansum)
    grid["precip_24h"] = _window(grid["precip"], 24, np.nansum)
    grid["visib_least_6h"] = _window(grid["visib"], 6, np.nanmin)
    grid["visib_least_12h"] = _window(grid["visib"], 12, np.nanmin)
    grid["wind_most_6h"] = _window(grid["wind_speed"], 6, np.nanmax)
    grid["gust_most_6h"] = _window(grid["wind_gust"], 6, np.nanmax)
    grid["pressure_change_12h"] = grid["pressure"] - _back(grid["pressure"], 12)
    grid["temp_change_24h"] = grid["temp"] - _back(grid["temp"], 24)
    grid["dew_gap"] = grid["temp"] - grid["dewp"]
    grid["visib_least_3h"] = _window(grid["visib"], 3, np.nanmin)
    grid["wind_most_3h"] = _window(grid["wind_speed"], 3, np.nanmax)
    for name in (
        "visib",
        "precip_3h",
        "precip_6h",
        "precip_12h",
        "visib_least_6h",
        "wind_speed",
        "pressure",
        "pressure_change_3h",
        "temp",
        "dewp",
    ):
        grid[f"{name}_city"] = np.broadcast_to(_mean(grid[name]), grid[name].shape)
    row = pc.index_in(table.column("origin"), value_set=pa.array(origins)).to_numpy()
    return {
        name: pa.array(values[row, wanted - first].astype(np.float32), from_pandas=True)
        for name, values in grid.items()
    }


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the airports that observed something."""
    seen = (~np.isnan(values)).sum(axis=0)
    return np.where(seen == 0, np.nan, np.nansum(values, axis=0) / np.maximum(seen, 1))


def _back(values: np.ndarray, hours: int) -> np.ndarray:
    """The value of ``hours`` hours ago."""
    moved = np.full_like(values, np.nan)
    moved[:, hours:] = values[:, :-hours]
    return moved


def _window(values: np.ndarray, hours: int, reduce: Any) -> np.ndarray:
    """``reduce`` over this hour and the ``hours`` before it; NaN where nothing was observed."""
    stacked = np.stack([values, *(_back(values, back) for back in range(1, hours + 1))])
    empty = np.isnan(stacked).all(axis=0)
    stacked[0][empty] = 0
    return np.where(empty, np.nan, reduce(stacked, axis=0))


def _plane(table: pa.Table, planes: pa.Table) -> dict[str, Any]:
    """What the aircraft registry says about the tail number; missing for the aircraft that it does not
    list."""
    row = pc.index_in(table.column("tailnum"), value_set=planes.column("tailnum").combine_chunks())
    row = pc.if_else(table.column("tailnum").is_valid(), row, pa.scalar(None, pa.int32()))
    taken = {name: planes.column(name).combine_chunks().take(row.combine_chunks()) for name in PLANE}
    taken["plane_year"] = taken.pop("year")
    return taken
