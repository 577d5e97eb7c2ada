"""Ids and time: order, the clock that steps back, what is taken as an id."""

from __future__ import annotations

import datetime as dt
import threading
import uuid

import pytest

from ctxstore import clock
from ctxstore.errors import InvalidIdError

NOON = dt.datetime(2026, 5, 4, 12, 0, tzinfo=dt.UTC)


def test_ids_are_uuid7_and_strictly_increasing():
    ids = [clock.new_id() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {(i.version, i.variant) for i in ids} == {(7, uuid.RFC_4122)}


def test_ids_of_many_threads_are_unique():
    made: list[list[uuid.UUID]] = []
    threads = [threading.Thread(target=lambda: made.append([clock.new_id() for _ in range(2_000)])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(ids == sorted(ids) for ids in made)
    assert len({i for ids in made for i in ids}) == 12_000


def test_an_id_carries_the_time_to_the_millisecond():
    with clock.frozen(NOON + dt.timedelta(days=3650)):  # later than any other id of this process
        assert clock.time_of(clock.new_id()) == NOON + dt.timedelta(days=3650)
    published = uuid.UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")  # RFC 9562, A.6
    assert clock.time_of(published) == dt.datetime(2022, 2, 22, 19, 22, 22, tzinfo=dt.UTC)


def test_the_largest_id_has_a_time():
    assert clock.time_of(uuid.UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")).year == 9999


def test_ids_keep_their_order_over_a_small_step_back_and_follow_the_clock_over_a_large_one():
    later = NOON + dt.timedelta(days=7300)
    with clock.frozen(later):
        first = clock.new_id()
    with clock.frozen(later - dt.timedelta(milliseconds=49)):
        second = clock.new_id()
    with clock.frozen(later - dt.timedelta(milliseconds=60)):
        third = clock.new_id()
    assert first < second
    assert third < first
    assert clock.time_of(third) == later - dt.timedelta(milliseconds=60)


def test_ids_never_run_more_than_fifty_milliseconds_ahead():
    still = NOON + dt.timedelta(days=9000)
    with clock.frozen(still):
        times = [clock.time_of(clock.new_id()) for _ in range(300_000)]
    assert max(times) - still <= dt.timedelta(milliseconds=50)


def test_frozen_holds_time_still_and_lets_go():
    with clock.frozen(NOON):
        assert clock.now() == clock.now() == NOON
        with clock.frozen(NOON.astimezone(dt.timezone(dt.timedelta(hours=5))) + dt.timedelta(hours=1)):
            assert clock.now() == NOON + dt.timedelta(hours=1)
            assert clock.now().tzinfo is dt.UTC
        assert clock.now() == NOON
    assert abs(dt.datetime.now(dt.UTC) - clock.now()) < dt.timedelta(minutes=1)


def test_frozen_refuses_a_naive_time():
    with pytest.raises(ValueError, match="aware"), clock.frozen(NOON.replace(tzinfo=None)):
        pass


SEVEN = uuid.UUID("0198f2c4-7a10-7c31-9d55-3b1f0e6a9c42")


@pytest.mark.parametrize("text", [SEVEN, str(SEVEN), SEVEN.hex, str(SEVEN).upper(), SEVEN.hex.upper()])
def test_what_is_taken_as_an_id(text):
    assert clock.parse_id(text) == SEVEN
    assert clock.is_uuid7(text)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "custom",
        7,
        uuid.UUID("9b2c4d1e-6f3a-4b8e-9c7d-0a1b2c3d4e5f"),
        "9b2c4d1e-6f3a-4b8e-9c7d-0a1b2c3d4e5f",
        f"{{{SEVEN}}}",
        SEVEN.urn,
        SEVEN.bytes,
        f" {SEVEN}",
        str(SEVEN).replace("-", "", 1),
        "0198f2c4-7a107c31-9d55-3b1f-0e6a9c42",
        True,
    ],
)
def test_what_is_no_id(value):
    assert not clock.is_uuid7(value)
    with pytest.raises(InvalidIdError) as caught:
        clock.parse_id(value)
    assert repr(value) in str(caught.value)
