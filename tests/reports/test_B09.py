"""B09: where the database's default was three-byte utf8, an emoji was refused; and some text could not be searched."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from ctxstore import Store

from .scenes import call, result, scripted

THUMB = "fine \N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}"
WORDS = ["天気予報", "Погода", "καιρός", "Größe", "\N{THUMBS UP SIGN}", "مرحبا"]


@pytest.mark.databases("mysql")
def test_every_text_column_names_utf8mb4_itself(empty_url):
    engine = sa.create_engine(empty_url)
    name = engine.url.database
    try:
        with engine.begin() as c:
            c.exec_driver_sql(f"ALTER DATABASE {name} CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci")
        with Store(empty_url) as store:
            store.upgrade()
            with engine.connect() as c:
                columns = c.exec_driver_sql(
                    "SELECT table_name, column_name, character_set_name, collation_name "
                    "FROM information_schema.columns "
                    f"WHERE table_schema = '{name}' AND table_name LIKE 'ctxstore%%' "
                    "AND character_set_name IS NOT NULL"
                ).all()
                keys = c.exec_driver_sql(
                    "SELECT constraint_name FROM information_schema.referential_constraints "
                    f"WHERE constraint_schema = '{name}'"
                ).all()
            ours = [c for c in columns if c[0] != "ctxstore_alembic_version"]
            assert len(ours) > 20
            assert {(charset, collation) for *_, charset, collation in ours} == {("utf8mb4", "utf8mb4_bin")}
            assert keys == [], "no key that two tables would have to agree on"
            ctx = store.create(scripted(THUMB), owner=THUMB)
            ctx.talk(THUMB)
            assert [m.text for m in store.load(ctx.id, scripted(), owner=THUMB).messages] == [THUMB, THUMB]
            assert store.list(owner=THUMB)[0].title == THUMB
    finally:
        with engine.begin() as c:
            c.exec_driver_sql(f"ALTER DATABASE {name} CHARACTER SET utf8mb4")
        engine.dispose()


def test_any_word_is_found_where_it_stands(store, do, engine):
    table = sa.Table("ctxstore_messages", sa.MetaData(), autoload_with=engine)
    for word in WORDS:
        ctx = do(store, "create", scripted(f"Yes: {word}!"), owner="o")
        do(ctx, "talk", f"Is it {word}?")
        ctx.assistant(None, [call("c1", f'{{"word": "{word}"}}')]).append(result("c1", {"said": [word]}))
        ctx.user("nothing of the kind")
        do(store, "save", ctx)
        assert sorted(m.position for m in do(store, "search", word, owner="o")) == [0, 1, 2, 3]
        assert do(store, "search", word, owner="another") == []
        with engine.connect() as c:
            like = sa.select(sa.func.count()).where(table.c.text.like(f"%{word}%"))
            assert c.scalar(like) == 4, "by plain SQL too"
