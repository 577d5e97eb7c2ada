"""B71: a list of chats read every payload of the table, pictures and all."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from ctxstore import new_id
from ctxstore.store.tables import contexts, messages

from .scenes import scripted, watched

COUNT, LENGTH = 200, 20_000


@pytest.fixture
def filled(store, engine):
    """200 long conversations of one owner, among ten times as many of others."""
    ctx = store.create(scripted(), owner="o")
    ctx.user("x" * LENGTH).save()
    with engine.begin() as c:
        head, message = (dict(c.execute(sa.select(t)).one()._mapping) for t in (contexts, messages))
        ids = [new_id() for _ in range(COUNT - 1)]
        others = [{**head, "id": new_id(), "owner": f"other{n % 20}"} for n in range(10 * COUNT)]
        c.execute(contexts.insert(), [{**head, "id": i} for i in ids] + others)
        c.execute(messages.insert(), [{**message, "context_id": i} for i in ids])
        if engine.dialect.name != "sqlite":
            c.exec_driver_sql("ANALYZE" if engine.dialect.name == "postgresql" else "ANALYZE TABLE ctxstore_contexts")
    return store


def plan(engine, owner):
    """How the database goes about a list, as one text."""
    query = sa.select(contexts.c.id, contexts.c.title).where(contexts.c.archived_at.is_(None)).limit(20)
    query = query.order_by(contexts.c.updated_at.desc(), contexts.c.id.desc())
    if owner is not None:
        query = query.where(contexts.c.owner == owner)
    sql = str(query.compile(engine, compile_kwargs={"literal_binds": True}))
    explain = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"
    with engine.connect() as c:
        return "\n".join(" ".join(map(str, row)) for row in c.execute(sa.text(f"{explain} {sql}")))


def test_a_list_reads_no_payload_and_goes_by_the_index(filled, engine):
    for owner, index in (("o", "owner_updated_at_id"), (None, "contexts_updated_at_id")):
        with watched(filled.engine) as seen:
            assert len(filled.list(owner=owner, limit=20)) == 20
        (statement,) = seen
        assert "payload" not in statement and "ctxstore_messages" not in statement
        said = plan(engine, owner)
        assert index in said, said
        assert not [sorting for sorting in ("TEMP B-TREE", "Sort Key", "filesort") if sorting in said], said
    (chosen,) = filled.list(owner="o", limit=1)
    with watched(filled.engine) as seen:
        assert len(filled.messages(chosen.id)) == 1
        filled.usage(by=("model",))
    assert len(seen) == 2, "a page of messages, and usage: a statement each"
    assert "payload" not in seen[1] and "ctxstore_messages" not in seen[1]
