"""Columns that llm.rb fills: imported into our own tables, from tables as an application has them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ctxstore import Store, new_id
from ctxstore.errors import ConfigurationError
from ctxstore.interop import aimport_column, import_column
from ctxstore.testing import ScriptedProvider

OLD = sorted((Path(__file__).parent.parent / "data" / "llmrb-v1").glob("*.json"))
TEXTS = [path.read_text(encoding="utf-8") for path in OLD]


def table(engine: sa.Engine, kind: Any, key: Any) -> sa.Table:
    found = sa.Table(
        "chats", sa.MetaData(), sa.Column("id", key, primary_key=True, autoincrement=False), sa.Column("data", kind)
    )
    with engine.begin() as c:
        found.create(c)
    return found


@pytest.mark.parametrize("kind", [sa.Text(), sa.JSON(), sa.JSON().with_variant(JSONB(), "postgresql")])
def test_a_column_becomes_contexts(store: Store, engine: sa.Engine, url: str, kind: Any) -> None:
    chats = table(engine, kind, sa.Integer())
    texts = [*TEXTS, json.dumps({"schema_version": 99}), json.dumps({"messages": []}), None]
    values = [t if isinstance(kind, sa.Text) or t is None else json.loads(t) for t in texts]
    with engine.begin() as c:
        c.execute(sa.insert(chats), [{"id": i, "data": v} for i, v in enumerate(values) if v is not None])
        c.execute(sa.insert(chats).values(id=len(values) - 1, data=sa.null()))
        before = c.execute(sa.select(chats)).all()
    report = import_column(store, url, "chats", owner="moved")
    assert (report.imported, report.there) == (len(TEXTS), 0)
    assert [r.key for r in report.refused] == [len(TEXTS), len(TEXTS) + 1]
    by_key = {int(store.export(row.id)["metadata"]["llm.rb"]["key"][0]): row for row in store.list(limit=100)}
    for i, text in enumerate(TEXTS):
        old = json.loads(text)
        ctx = store.load(by_key[i].id, ScriptedProvider([]))
        assert [m.role for m in ctx.messages] == [m["role"] for m in old["messages"]]
        assert ctx.token_usage.total_tokens == sum(m.get("usage", {}).get("total_tokens", 0) for m in old["messages"])
    assert store.usage() == [] and store.usage(include_imported=True), "counted when asked for"
    again = asyncio.run(aimport_column(store, url, "chats", owner="moved"))
    assert (again.imported, again.there, again.attempts) == (0, len(TEXTS), 0)
    with engine.connect() as c:
        assert c.execute(sa.select(chats)).all() == before
    assert not store.verify().findings


def test_the_key_of_the_record_is_the_id(store: Store, engine: sa.Engine, url: str) -> None:
    chats = table(engine, sa.Text(), sa.Uuid())
    key = new_id()
    with engine.begin() as c:
        c.execute(sa.insert(chats), [{"id": key, "data": TEXTS[0]}])
    assert import_column(store, url, "chats").imported == 1
    assert store.list()[0].id == key


@pytest.mark.databases("sqlite")
def test_what_is_not_there(store: Store, engine: sa.Engine, url: str) -> None:
    table(engine, sa.Text(), sa.Integer())
    for name, column in (("nothing", "data"), ("chats", "nothing")):
        with pytest.raises(ConfigurationError, match="nothing"):
            import_column(store, url, name, column)
