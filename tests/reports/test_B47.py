"""B47: a migration that was killed after its first statement left a database that no restart could use.

MySQL and MariaDB commit each statement of a schema by itself.
"""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from ctxstore import Store
from ctxstore.store import migrations
from ctxstore.store.tables import metadata

from .scenes import scripted, texts


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.databases("mysql")
@pytest.mark.parametrize("after", [1, 2, 6])
def test_killed_in_between_the_next_start_finishes(empty_url, after):
    engine = sa.create_engine(empty_url, poolclass=sa.NullPool)
    done = 0

    def kill(connection, cursor, statement, *rest):
        nonlocal done
        if statement.lstrip().upper().startswith(("CREATE", "ALTER", "INSERT", "UPDATE")):
            if done == after:
                raise Killed
            done += 1

    sa.event.listen(engine, "before_cursor_execute", kill)
    with pytest.raises(Killed), engine.begin() as c:
        migrations.upgrade(c)
    sa.event.remove(engine, "before_cursor_execute", kill)
    assert done == after
    for _ in range(2):
        with Store(empty_url) as store:
            store.upgrade()
            assert store.current() == migrations.head()
            ctx = store.create(scripted("one"))
            ctx.talk("hi")
    with Store(empty_url) as store:
        assert len(store.list()) == 2
        assert texts(store.load(ctx.id, scripted()).messages) == ["hi", "one"], "no row is lost"
    inspector = sa.inspect(engine)
    for table in metadata.tables.values():
        assert {i.name for i in table.indexes} == {i["name"] for i in inspector.get_indexes(table.name)}
