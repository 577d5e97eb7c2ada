"""B07: a message with U+0000 in it was refused by one database, and broke queries on another."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st

from ctxstore import Context
from ctxstore.errors import UnsupportedValueError
from ctxstore.jsontext import join_surrogates

from .scenes import call, elsewhere, result, scripted, stored

NASTY = [
    "before\x00after",
    "\x00",
    "half \ud800 pair",
    "\udfff\ud800",
    "thumbs \N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-6}",
    "e\u0301 and \u00e9",
    "\ufffe\uffff\U0010ffff",
    "\u2028\u2029\x7f\x85\x1b[31m",
    "tail\x00",
    " spaced ",
    "line\r\nbreak\r",
    "'; DROP TABLE ctxstore_messages; --",
    "100%_\\",
]
TEXT = st.text(st.characters(exclude_categories=[])).map(join_surrogates)


def with_everything(text):
    """A conversation that holds ``text`` wherever text can stand."""
    ctx = Context(scripted(), metadata={"note": text, text: 1}, params={"stop": [text]})
    ctx.user(text).system([text])
    ctx.assistant(None, [call("c1", text, "look")])
    ctx.append(result("c1", {"out": text, text: [text]}))
    return ctx


def test_it_comes_back_to_the_code_point(store, do):
    for text in NASTY:
        ctx = with_everything(text)
        before = ctx.to_payload()["messages"]
        do(store, "save", ctx)
        back = do(store, "load", ctx.id, scripted())
        assert back.to_payload()["messages"] == before
        assert (back.metadata, back.params) == ({"note": text, text: 1}, {"stop": [text]})
        assert back.messages[0].content == text and back.messages[2].tool_calls[0].arguments_json == text
    assert [s.message_count for s in do(store, "list")] == [4] * len(NASTY)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT)
def test_any_text(store, text):
    ctx = with_everything(text)
    store.save(ctx)
    back = store.load(ctx.id, scripted())
    assert back.to_payload()["messages"] == ctx.to_payload()["messages"]
    assert back.metadata == ctx.metadata


def test_in_another_process(store, url):
    ctx = store.create(scripted())
    for text in NASTY:
        ctx.user(text)
    ctx.save()
    code = """
        from ctxstore import Store
        from ctxstore.testing import ScriptedProvider
        with Store(url) as store:
            out = [[ord(c) for c in m.content] for m in store.load(identity, ScriptedProvider([])).messages]
    """
    assert elsewhere(code, url=url, identity=str(ctx.id)) == [[ord(c) for c in text] for text in NASTY]


def test_the_table_is_still_searched(store, do, engine):
    ctx = do(store, "create", scripted(), owner="o")
    for n, text in enumerate(NASTY):
        ctx.user(f"needle{n} {text}")
    do(store, "save", ctx)
    for n in range(len(NASTY)):
        found = do(store, "search", f"needle{n} ", owner="o")
        assert [m.text for m in found] == [f"needle{n} {NASTY[n]}"]
    assert [m.text for m in do(store, "search", "after")] == [f"needle0 {NASTY[0]}"]
    column = sa.Table("ctxstore_messages", sa.MetaData(), autoload_with=engine).c.text
    with engine.connect() as c:
        assert c.scalar(sa.select(sa.func.count()).where(column.like("%needle%"))) == len(NASTY)
        assert c.scalars(sa.select(column).where(column.like("needle0 %"))).all() == ["needle0 before\ufffdafter"]


def test_what_json_cannot_tell_apart_is_refused_before_any_row_changes(store, do, engine):
    """A pair of surrogates as two code points would come back as one: the one text that is refused, and it says so."""
    ctx = do(store, "create", scripted())
    ctx.user("fine")
    do(store, "save", ctx)
    before = stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")
    tries = {
        "content": lambda: ctx.user("\ud83d\udc4d"),
        "the result of 'c1'.out[0]": lambda: ctx.append(result("c1", {"out": ["\ud83d\udc4d"]})),
        "metadata.out": lambda: setattr(ctx, "metadata", {"out": "\ud83d\udc4d"}),
    }
    for path, attempt in tries.items():
        with pytest.raises(UnsupportedValueError, match="surrogate pair") as caught:
            attempt()
        assert caught.value.path == path
    do(store, "save", ctx)
    assert (stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")) == before
