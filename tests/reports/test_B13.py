"""B13: a long tool result did not fit its column, and was refused or cut in the middle of its JSON."""

from __future__ import annotations

import hashlib

import pytest
import sqlalchemy as sa

from ctxstore import Store
from ctxstore.messages import Message
from ctxstore.payload.codec import dump_message

from .scenes import result, scripted

CHINESE = "\u6f22"
SIZES = [(CHINESE, 400_000), ("a", 65_535), ("a", 65_536), ("\N{THUMBS UP SIGN}", 16_384)]


def digest(text):
    return len(text), hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(("letter", "count"), SIZES, ids=lambda v: ascii(v))
def test_length_and_hash_are_equal_after_a_load(store, do, letter, count):
    text = letter * count
    ctx = do(store, "create", scripted(), metadata={"long": text})
    ctx.append(result("c1", text)).user(text)
    do(store, "save", ctx)
    back = do(store, "load", ctx.id, scripted())
    assert digest(back.tool_results[0].value) == digest(back.messages[1].text) == digest(text)
    assert digest(back.metadata["long"]) == digest(text)


@pytest.mark.parametrize("size", [65_534, 65_535, 65_536, 65_537])
def test_a_payload_of_just_so_many_bytes(store, engine, size):
    ctx = store.create(scripted())
    for letter in ("a", CHINESE):
        empty = len(dump_message(Message.new("user", "")).encode())
        room = size - empty
        ctx.user(letter * (room // len(letter.encode())) + "b" * (room % len(letter.encode())))
        assert len(dump_message(ctx.messages[-1]).encode()) == size
    ctx.save()
    assert [m.text for m in store.load(ctx.id, scripted()).messages] == [m.text for m in ctx.messages]


@pytest.mark.databases("mysql")
def test_on_a_server_that_cuts_instead_of_refusing(url):
    engine = sa.create_engine(url)

    @sa.event.listens_for(engine, "connect")
    def lax(connection, record):
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.close()

    try:
        with Store(engine) as store:
            ctx = store.create(scripted())
            ctx.append(result("c1", CHINESE * 400_000))
            store.save(ctx)
            assert digest(store.load(ctx.id, scripted()).tool_results[0].value) == digest(CHINESE * 400_000)
        kinds = {
            (table, column["name"]): str(column["type"]).split()[0]
            for table in ("ctxstore_contexts", "ctxstore_messages", "ctxstore_in_flight")
            for column in sa.inspect(engine).get_columns(table)
            if column["name"] in ("payload", "text")
        }
        assert set(kinds.values()) == {"LONGTEXT"} and len(kinds) == 4
    finally:
        engine.dispose()
