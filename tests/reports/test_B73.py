"""B73: pages by offset over rows with one and the same time repeated some and skipped others."""

from __future__ import annotations

import datetime as dt

import pytest

from ctxstore import clock
from ctxstore.errors import ConfigurationError

from .scenes import scripted

NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def walk(store, do, limit, between=lambda: None, **options):
    pages, after = [], None
    while page := do(store, "list", limit=limit, after=after, **options):
        pages.append([s.id for s in page])
        after = page[-1].cursor
        between()
    return pages


def test_every_one_once_and_the_same_on_each_walk(store, do):
    with clock.frozen(NOON):
        made = {do(store, "create", scripted(), owner="o").id for _ in range(25)}
        do(store, "create", scripted(), owner="another")
    for limit in (1, 7, 10, 24, 25, 26):
        first = walk(store, do, limit, owner="o")
        assert [len(p) for p in first[:-1]] == [limit] * (len(first) - 1)
        flat = [i for page in first for i in page]
        assert len(flat) == 25 and set(flat) == made
        assert walk(store, do, limit, owner="o") == first
        assert flat == sorted(made, reverse=True), "the tie-break is the id"


def test_what_comes_in_while_paging_moves_nothing(store, do):
    with clock.frozen(NOON):
        made = {do(store, "create", scripted(), owner="o").id for _ in range(25)}

        def more():
            do(store, "create", scripted(), owner="o")

        flat = [i for page in walk(store, do, 10, more, owner="o") for i in page]
    assert len(flat) == len(set(flat)) and made <= set(flat)


def test_deleted_and_archived_between_pages(store, do):
    with clock.frozen(NOON):
        made = sorted((do(store, "create", scripted(), owner="o").id for _ in range(9)), reverse=True)
        page = do(store, "list", owner="o", limit=3)
        do(store, "delete", page[-1].id)  # the one the cursor stands on
        do(store, "archive", made[4])
        rest = do(store, "list", owner="o", limit=10, after=page[-1].cursor)
    assert [s.id for s in rest] == [made[n] for n in (3, 5, 6, 7, 8)]


def test_messages_page_by_position(store, do):
    with clock.frozen(NOON):
        ctx = do(store, "create", scripted())
        for n in range(25):
            ctx.user(str(n))
        do(store, "save", ctx)
    for limit in (1, 7, 10, 25, 26):
        seen, before = [], None
        while page := do(store, "messages", ctx.id, limit=limit, before=before):
            seen = [m.text for m in page] + seen
            before = page[0].position
        assert seen == [str(n) for n in range(25)]


@pytest.mark.parametrize("cursor", ["", "not one", "AAAA", "MjAyNi0wMS0wMSBub3BlCg=="])
def test_a_cursor_that_is_none_is_refused(store, do, cursor):
    with pytest.raises(ConfigurationError, match="cursor"):
        do(store, "list", after=cursor)
    for limit in (0, -1, 1.5, True, "10"):
        with pytest.raises(ConfigurationError, match="limit"):
            do(store, "list", limit=limit)
