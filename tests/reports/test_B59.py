"""B59: two keys that differ in case were one, and a UUID in another spelling found nothing."""

from __future__ import annotations

import pytest

from ctxstore import new_id
from ctxstore.errors import ConfigurationError, ContextNotFoundError, InvalidIdError

from .scenes import scripted, texts

NAMES = ["chat_aB", "chat_Ab", "CHAT_AB", "chat_áb", "chat_ab", "chat_aß", "chat_ass", "chat_a\u0301b"]


def test_every_spelling_of_an_id_finds_it(store, do):
    ctx = do(store, "create", scripted("one"), owner="o")
    do(ctx, "talk", "hi")
    other = do(store, "create", scripted(), owner="o")
    spellings = [ctx.id, str(ctx.id), ctx.id.hex, str(ctx.id).upper(), ctx.id.hex.upper()]
    for spelling in spellings:
        back = do(store, "load", spelling, scripted())
        assert back.id == ctx.id and texts(back.messages) == ["hi", "one"]
        assert len(do(store, "history", spelling)) == 2
        assert do(store, "get", spelling).id == ctx.id
    for wrong in (new_id(), str(new_id())):
        with pytest.raises(ContextNotFoundError):
            do(store, "load", wrong, scripted())
    for no_id in ("chat_aB", "{" + str(ctx.id) + "}", f"urn:uuid:{ctx.id}", 7, None, ""):
        with pytest.raises(InvalidIdError):
            do(store, "load", no_id, scripted())
    assert {s.id for s in do(store, "list", owner="o")} == {ctx.id, other.id}


def test_the_row_is_found_by_the_text_of_its_id_in_plain_sql(store, engine):
    ctx = store.create(scripted())
    with engine.connect() as c:
        query = f"SELECT count(*) FROM ctxstore_contexts WHERE id = '{ctx.id}'"
        assert c.exec_driver_sql(query).scalar() == 1


def test_owners_that_differ_to_the_letter_are_others(store, do):
    made = {name: do(store, "create", scripted(f"for {name}"), owner=name) for name in NAMES}
    for name, ctx in made.items():
        do(ctx, "talk", f"to {name}")
    for name, ctx in made.items():
        assert [s.id for s in do(store, "list", owner=name)] == [ctx.id]
        assert texts(do(store, "load", ctx.id, scripted(), owner=name).messages) == [f"to {name}", f"for {name}"]
        for other in set(NAMES) - {name}:
            with pytest.raises(ContextNotFoundError):
                do(store, "load", ctx.id, scripted(), owner=other)
    assert {r.owner: r.requests for r in do(store, "usage", by=("owner",))} == dict.fromkeys(NAMES, 1)


def test_models_that_differ_in_case_are_others(store, do):
    for model in ("m-a", "M-A"):
        do(do(store, "create", scripted("x", model=model)), "talk", "hi")
    assert sorted(r.model for r in do(store, "usage", by=("model",))) == ["M-A", "m-a"]


def test_a_space_at_the_end_would_be_nothing_on_some_databases_and_is_refused(store, do):
    with pytest.raises(ConfigurationError, match="team-7 "):
        do(store, "create", scripted(), owner="team-7 ")
