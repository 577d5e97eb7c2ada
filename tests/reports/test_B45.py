"""B45: a payload of an unknown version was read as if it were the newest known one."""

from __future__ import annotations

import json

import pytest

from ctxstore import Context
from ctxstore.errors import CtxstoreError, SchemaVersionError
from ctxstore.payload.schema import VERSION
from ctxstore.store.tables import contexts, messages

from .scenes import scripted, stored

UNKNOWN = [99, VERSION + 1, 0, -1, True, 1.0, "3", None, [3], {}]
SUPPORTED = tuple(range(1, VERSION + 1))


@pytest.mark.parametrize("version", UNKNOWN, ids=repr)
def test_it_names_what_it_found_and_what_it_can_read(version):
    payload = {**Context(scripted()).user("hi").to_payload(), "schema_version": version}
    for given in (payload, json.dumps(payload), json.dumps(payload).encode()):
        with pytest.raises(SchemaVersionError) as caught:
            Context.restore(given, provider=scripted())
        assert caught.value.found == version and type(caught.value.found) is type(version)
        assert caught.value.supported == SUPPORTED
        assert repr(version) in str(caught.value) and "1, 2, 3" in str(caught.value)
    with pytest.raises(SchemaVersionError):
        Context.validate_schema(version)


def test_a_missing_one_is_no_version_either():
    payload = Context(scripted()).user("hi").to_payload()
    del payload["schema_version"]
    with pytest.raises(SchemaVersionError, match="no schema_version"):
        Context.restore(payload, provider=scripted())
    assert [Context.validate_schema(v) for v in SUPPORTED] == list(SUPPORTED)


def from_the_future(store, engine, where):
    """A context that a newer program saved, and a live one of this program from before."""
    live = store.create(scripted("one", "two"), owner="o")
    live.talk("hi")
    table = contexts if where == "head" else messages
    with engine.begin() as c:
        text = c.execute(table.select().with_only_columns(table.c.payload).limit(1)).scalar_one()
        text = text.replace(f'"schema_version":{VERSION}', '"schema_version":99')
        values = {"schema_version": 99, "payload": text} if where == "head" else {"schema_version": 99}
        c.execute(table.update().values(**values))
    return live


@pytest.mark.parametrize("where", ["head", "message"])
def test_the_row_stays_as_it_is_and_is_listed(store, do, engine, where):
    live = from_the_future(store, engine, where)
    before = stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")
    with pytest.raises(SchemaVersionError) as caught:
        do(store, "load", live.id, scripted())
    assert (caught.value.found, caught.value.supported) == (99, SUPPORTED)
    for verb in ("export", "fork"):
        with pytest.raises(SchemaVersionError):
            do(store, verb, live.id)
    assert [s.id for s in do(store, "list", owner="o")] == [live.id]
    assert do(store, "list")[0].message_count == 2
    assert (stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")) == before


def test_an_older_program_never_writes_over_it(store, do, engine):
    live = from_the_future(store, engine, "head")
    before = stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")
    with pytest.raises(SchemaVersionError):
        do(live, "talk", "again")
    live.user("by hand")
    for conflict in ("raise", "append"):
        with pytest.raises(CtxstoreError):
            do(store, "save", live, on_conflict=conflict)
    assert (stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")) == before
