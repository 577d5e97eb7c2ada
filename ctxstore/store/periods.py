"""Hours, days, weeks and months of any time zone, in SQL, from the ledger's slots of a quarter of an hour.

A zone's offset is a whole number of slots and changes at the edge of one, so the local time of a row is its slot plus
the offset that held then: one CASE over the changes of the offset, newest first, whatever the dialect, right on days
of 23 and 25 hours. Zones whose clocks were set otherwise (before 1972) are taken at the nearest quarter.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from .. import clock
from ..errors import ConfigurationError

__all__ = ["PERIODS", "SLOT_SECONDS", "instant", "period", "slot_of", "zone_of"]

SLOT_SECONDS = 900
"""A slot is a quarter of an hour: every zone's offset is a whole number of them."""

PERIODS = ("hour", "day", "week", "month")

_DAY = 86400 // SLOT_SECONDS
_HOUR = 3600 // SLOT_SECONDS
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST = dt.datetime(1972, 1, 1, tzinfo=dt.UTC)
_AHEAD = 10  # years: rows of a later time have no zone's word on it yet, and "until 9999" must not cost its changes
_STEP = dt.timedelta(days=5)  # closer together than any two changes of a zone's offset: Morocco's are a month apart


def slot_of(time: dt.datetime) -> int:
    """The slot that ``time`` (aware) lies in, counted from 1970."""
    return int(time.timestamp() // SLOT_SECONDS)


def zone_of(name: str | dt.tzinfo) -> dt.tzinfo:
    """The time zone called ``name`` in the IANA database, as ``America/New_York``.

    Raises:
        ConfigurationError: there is none of that name.
    """
    if isinstance(name, dt.tzinfo):
        return name
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise ConfigurationError(
            f"there is no time zone {name!r}; use a name of the IANA database such as 'UTC' or 'America/New_York' "
            "(where the system has no such database: pip install tzdata)"
        ) from error


def instant(time: dt.datetime | dt.date | None, zone: dt.tzinfo, what: str) -> dt.datetime | None:
    """``time`` in UTC; a date is its first moment in ``zone``.

    Raises:
        ConfigurationError: a datetime without a zone, which could mean any of 38 moments.
    """
    if time is None:
        return None
    if not isinstance(time, dt.datetime):
        if not isinstance(time, dt.date):
            raise ConfigurationError(f"{what} must be an aware datetime or a date, not {time!r}")
        return dt.datetime(time.year, time.month, time.day, tzinfo=zone).astimezone(dt.UTC)
    if time.utcoffset() is None:
        raise ConfigurationError(f"{what} is {time!r}, which has no time zone; give it one, as tzinfo=datetime.UTC")
    return time.astimezone(dt.UTC)


@lru_cache(maxsize=64)
def _changes(zone: dt.tzinfo, last_year: int) -> tuple[tuple[int | None, int], ...]:
    """Slot from which an offset holds, and the offset in slots, newest first; the oldest holds from ever (None)."""
    found: list[tuple[int | None, int]] = [(None, _offset(zone, _FIRST))]
    before, end = _FIRST, dt.datetime(last_year + 1, 1, 1, tzinfo=dt.UTC)
    while before < end:
        after = before + _STEP
        if (offset := _offset(zone, after)) != found[-1][1]:
            low, high = slot_of(before), slot_of(after)
            while high - low > 1:
                middle = (low + high) // 2
                at = _EPOCH + dt.timedelta(seconds=middle * SLOT_SECONDS)
                low, high = (low, middle) if _offset(zone, at) == offset else (middle, high)
            found.append((high, offset))
        before = after
    return tuple(reversed(found))


def _offset(zone: dt.tzinfo, at: dt.datetime) -> int:
    offset = at.astimezone(zone).utcoffset() or dt.timedelta()
    return round(offset.total_seconds() / SLOT_SECONDS)


def _number(value: int) -> ColumnElement[int]:
    """In the text of the statement, not as a parameter: the same expression must be found again in GROUP BY."""
    return sa.literal_column(str(value), sa.Integer())


def _offset_at(slot: ColumnElement[int], zone: dt.tzinfo, since: dt.datetime | None, until: dt.datetime | None) -> str:
    """The offset that held at ``slot``, as SQL, with the changes that lie within the range.

    One piece of text: a zone has a hundred changes, and SQLAlchemy walks every element of a statement each time.
    """
    now = clock.now().year
    changes = _changes(zone, min(max(now, until.year if until is not None else now), now + _AHEAD) + 1)
    arms: list[str] = []
    for start, held in changes:
        if start is not None and until is not None and start >= until.timestamp() / SLOT_SECONDS:
            continue
        if start is None or since is not None and start <= slot_of(since):
            break
        arms.append(f" WHEN {slot} >= {start} THEN {held}")
    return f"CASE{''.join(arms)} ELSE {held} END" if arms else str(held)


def period(
    name: str,
    slot: ColumnElement[int],
    zone: dt.tzinfo,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> tuple[ColumnElement[Any], Callable[[Any], Any]]:
    """What to group ``slot`` by, for rows of that range, and what makes the key of a group from its value.

    Keys are the start of the period: an aware datetime in ``zone`` for hours (the two hours of one name when clocks
    are set back stay apart), a date for days, weeks (a Monday) and months.
    """
    offset: ColumnElement[int] = sa.literal_column(_offset_at(slot, zone, since, until), sa.Integer())
    local = slot + offset
    if name == "hour":
        return (local // _number(_HOUR)) * _number(_HOUR) - offset, lambda value: _hour(int(value), zone)
    day = local // _number(_DAY)
    if name == "day":
        return day, lambda value: _date(int(value))
    if name == "week":  # 1970 began on a Thursday: day -3 was a Monday
        return (day + _number(3)) // _number(7), lambda value: _date(int(value) * 7 - 3)
    return _month(local * _number(SLOT_SECONDS)), lambda value: dt.date(int(value) // 100, int(value) % 100, 1)


def _hour(slot: int, zone: dt.tzinfo) -> dt.datetime:
    return (_EPOCH + dt.timedelta(seconds=slot * SLOT_SECONDS)).astimezone(zone)


def _date(day: int) -> dt.date:
    return (_EPOCH + dt.timedelta(days=day)).date()


class _month(FunctionElement[int]):
    """Year * 100 + month of a count of seconds since 1970, in the calendar of the count itself."""

    inherit_cache = True
    type = sa.Integer()


@compiles(_month, "sqlite")
def _month_sqlite(element: _month, compiler: Any, **kw: Any) -> str:
    return f"CAST(strftime('%Y%m', {compiler.process(element.clauses, **kw)}, 'unixepoch') AS INTEGER)"


@compiles(_month, "postgresql")
def _month_postgresql(element: _month, compiler: Any, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"CAST(to_char(timestamp '1970-01-01' + ({seconds}) * interval '1 second', 'YYYYMM') AS INTEGER)"


@compiles(_month, "mysql")
@compiles(_month, "mariadb")
def _month_mysql(element: _month, compiler: Any, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"EXTRACT(YEAR_MONTH FROM DATE_ADD('1970-01-01 00:00:00', INTERVAL {seconds} SECOND))"
