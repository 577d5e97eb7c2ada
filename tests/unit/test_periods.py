"""Hours, days, weeks and months in SQL, against the zone database of the standard library."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from hypothesis import given, settings, strategies as st

from ctxstore import clock
from ctxstore.errors import ConfigurationError
from ctxstore.store.periods import PERIODS, instant, period, slot_of, zone_of

# offsets of whole hours, of 30 and of 45 minutes; changes of 30 minutes; a month of Ramadan; a day that never was
ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Pacific/Apia",
    "Africa/Casablanca",
    "America/St_Johns",
    "Antarctica/Troll",
]
TIMES = st.floats(631_152_000, 2_051_222_400).map(
    lambda seconds: dt.datetime.fromtimestamp(seconds, dt.UTC)
)  # 1990-2034


SLOTS = sa.Table("slots", sa.MetaData(), sa.Column("n", sa.Integer, primary_key=True), sa.Column("slot", sa.Integer))


@pytest.fixture(scope="module")
def slots() -> Iterator[sa.Connection]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as c:
        SLOTS.create(c)
        yield c
    engine.dispose()


def keys(
    c: sa.Connection, name: str, times: Sequence[dt.datetime], zone: dt.tzinfo, *range_: dt.datetime | None
) -> list[Any]:
    """The period of each time, by one statement."""
    expression, read = period(name, SLOTS.c.slot, zone, *range_)
    c.execute(SLOTS.delete())
    c.execute(SLOTS.insert(), [{"n": n, "slot": slot_of(time)} for n, time in enumerate(times)])
    return [read(value) for value in c.scalars(sa.select(expression).order_by(SLOTS.c.n))]


def truth(name: str, time: dt.datetime, zone: dt.tzinfo) -> Any:
    local = time.astimezone(zone)
    if name == "hour":
        passed = dt.timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
        return (time - passed).astimezone(zone)
    if name == "day":
        return local.date()
    if name == "week":
        return local.date() - dt.timedelta(days=local.weekday())
    return local.date().replace(day=1)


@settings(deadline=None, max_examples=100)
@given(times=st.lists(TIMES, min_size=1, max_size=40), zone=st.sampled_from(ZONES), name=st.sampled_from(PERIODS))
def test_periods_begin_where_the_zone_says(
    slots: sa.Connection, times: list[dt.datetime], zone: str, name: str
) -> None:
    there = ZoneInfo(zone)
    if name == "hour" and zone == "Australia/Lord_Howe":  # an hour of half an hour: whose it is is a matter of taste
        times = [t for t in times if not _changed_within_the_hour(t, there)] or [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]
    wanted = [truth(name, time, there) for time in times]
    end = max(times) + dt.timedelta(microseconds=1)
    assert keys(slots, name, times, there, None, end) == wanted
    assert keys(slots, name, times, there, min(times), end) == wanted
    with clock.frozen(end):
        assert keys(slots, name, times, there) == wanted
        assert keys(slots, name, times, there, min(times)) == wanted


def _changed_within_the_hour(time: dt.datetime, zone: ZoneInfo) -> bool:
    return time.astimezone(zone).utcoffset() != (time - dt.timedelta(hours=1)).astimezone(zone).utcoffset()


@pytest.mark.parametrize(("day", "hours"), [("2026-03-08", 23), ("2026-11-01", 25), ("2026-07-01", 24)])
def test_days_of_23_and_25_hours(slots: sa.Connection, day: str, hours: int) -> None:
    zone, date = ZoneInfo("America/New_York"), dt.date.fromisoformat(day)
    first = dt.datetime.combine(date, dt.time(), zone).astimezone(dt.UTC)
    quarters = [first + dt.timedelta(minutes=15 * n) for n in range(-4, hours * 4 + 4)]
    inside = [t for t, found in zip(quarters, keys(slots, "day", quarters, zone), strict=True) if found == date]
    assert inside == quarters[4:-4]
    found = {hour.astimezone(dt.UTC) for hour in keys(slots, "hour", inside, zone)}
    assert len(found) == hours, "two hours of one name are two"


def test_the_day_that_samoa_left_out(slots: sa.Connection) -> None:
    times = [dt.datetime(2011, 12, 30, tzinfo=dt.UTC) + dt.timedelta(hours=n) for n in range(24)]
    days = set(keys(slots, "day", times, ZoneInfo("Pacific/Apia")))
    assert days == {dt.date(2011, 12, 29), dt.date(2011, 12, 31)}


def test_only_the_changes_of_the_range_are_in_the_statement() -> None:
    zone, end = ZoneInfo("Europe/Berlin"), dt.datetime(9999, 12, 31, 23, 59, tzinfo=dt.UTC)
    june, july = (dt.datetime(2026, month, 1, tzinfo=dt.UTC) for month in (6, 7))

    def changes(*range_: dt.datetime | None) -> int:
        return str(period("day", SLOTS.c.slot, zone, *range_)[0]).count("WHEN")

    with clock.frozen(july):
        assert changes(None, end) < 200, "a range without end costs no more"
        assert changes(june) < 6
        assert changes(june, july) == 0


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "America", "UTC\x00", 3, None])
def test_an_unknown_zone_is_named(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="time zone") as error:
        zone_of(name)
    assert repr(name) in str(error.value)
    assert error.value.__cause__ is not None


def test_times_without_a_zone_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"since is .* has no time zone"):
        instant(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None), dt.UTC, "since")
    with pytest.raises(ConfigurationError, match="until must be an aware datetime or a date"):
        instant("2026-01-01", dt.UTC, "until")  # type: ignore[arg-type]


def test_a_date_begins_in_the_zone() -> None:
    begin = instant(dt.date(2026, 3, 8), ZoneInfo("America/New_York"), "since")
    assert begin == dt.datetime(2026, 3, 8, 5, tzinfo=dt.UTC)
    assert instant(None, dt.UTC, "since") is None
