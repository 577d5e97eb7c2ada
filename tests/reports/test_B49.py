"""B49: up, down, up again failed, because going down had left a type behind."""

from __future__ import annotations

import sqlalchemy as sa

from ctxstore import Store
from ctxstore.store import migrations

from .scenes import scripted, texts


def left(engine):
    """Everything in the database that bears our name: tables, views, indexes, sequences, types."""
    with engine.connect() as c:
        if engine.dialect.name == "postgresql":
            query = (
                "SELECT relname FROM pg_class WHERE relname LIKE '%ctxstore%' UNION ALL "
                "SELECT typname FROM pg_type WHERE typname LIKE '%ctxstore%' UNION ALL "
                "SELECT proname FROM pg_proc WHERE proname LIKE '%ctxstore%'"
            )
        elif engine.dialect.name == "sqlite":
            query = "SELECT name FROM sqlite_master WHERE name LIKE '%ctxstore%' OR tbl_name LIKE '%ctxstore%'"
        else:
            query = (
                "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "
                "AND table_name LIKE '%ctxstore%'"
            )
        return c.execute(sa.text(query)).scalars().all()


def test_up_down_up_with_the_hosts_tables_beside(empty_url):
    engine = sa.create_engine(empty_url, poolclass=sa.NullPool)
    columns = sa.Column("id", sa.Integer, primary_key=True), sa.Column("title", sa.Text)
    host = sa.Table("tickets", sa.MetaData(), *columns)
    with engine.begin() as c:
        host.create(c)
        c.execute(host.insert(), [{"id": 1, "title": "one"}, {"id": 2, "title": "two"}])
    for _ in range(3):
        with Store(empty_url) as store:
            store.upgrade()
            ctx = store.create(scripted("ok"))
            ctx.talk("hi")
            assert texts(store.load(ctx.id, scripted()).messages) == ["hi", "ok"]
            assert len(store.list()) == 1
        with engine.begin() as c:
            migrations.downgrade(c, "base")
            assert migrations.current(c) is None
        assert left(engine) == []
        with engine.connect() as c:
            assert c.execute(sa.select(host).order_by(host.c.id)).all() == [(1, "one"), (2, "two")]
            assert sa.inspect(c).get_table_names() == ["tickets"]
    engine.dispose()
