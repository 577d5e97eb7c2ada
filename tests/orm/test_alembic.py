"""ctxstore beside a host's own migrations: both arrangements, and what autogenerate writes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.util import CommandError
from sqlalchemy.orm import Session

from ctxstore import Store
from ctxstore.errors import DatabaseNotUpgradedError
from ctxstore.store.migrations import migrations_path
from ctxstore.testing import ScriptedProvider

from .hosts import texts
from .project import WITH_CONTEXT, WITH_LINK, Project
from .test_mapping import COLUMNS

OTHER = """
class Other(Base):
    __tablename__ = "others"
    id: Mapped[int] = mapped_column(primary_key=True)
"""
OURS = {"ctxstore_contexts", "ctxstore_messages", "ctxstore_in_flight", "ctxstore_usage", "ctxstore_alembic_version"}


@pytest.fixture
def project(empty_url: str, tmp_path: Path) -> Iterator[Callable[..., Project]]:
    made: list[Project] = []

    def make(**options: Any) -> Project:
        made.append(Project(tmp_path / f"project{len(made)}", empty_url, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def talk(host: Project, *prompts: str) -> list[str]:
    """Talk through a row of the host's model in the database that its migrations made."""
    Ticket: Any = importlib.import_module(host.name).Ticket
    Ticket.context_options = lambda row: {"provider": ScriptedProvider(["pong"] * 9)}
    engine = sa.create_engine(host.url)
    try:
        with Session(engine) as session:
            row = Ticket(id=1)
            session.add(row)
            for prompt in prompts:
                row.context.talk(prompt)
                session.commit()
        with Session(engine) as session:
            return texts(session.get_one(Ticket, 1))
    finally:
        engine.dispose()


def tables(url: str) -> set[str]:
    engine = sa.create_engine(url)
    try:
        return set(sa.inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_a_lineage_of_our_own_beside_the_hosts(project: Callable[..., Project]) -> None:
    host = project()
    host.revise("tickets")
    host.upgrade()
    with Store(host.url) as store:
        store.upgrade()
    assert tables(host.url) == {"alembic_version", "tickets", *OURS}
    host.check()

    host.models(WITH_CONTEXT)
    written = host.revise("contexts")
    added = re.findall(r"op\.add_column\('tickets', sa\.Column\('(\w+)'", written.split("def downgrade")[0])
    assert set(added) == COLUMNS
    assert len(added) == written.split("def downgrade")[0].count("op."), "and nothing else"
    host.upgrade()
    host.check()
    assert re.search(r"def upgrade\(\):\s+# [^\n]+\n\s+pass", host.revise("nothing"))
    host.upgrade()
    assert talk(host, "1", "2") == ["1", "pong", "2", "pong"]
    with Store(host.url) as store:
        store.upgrade()
    host.downgrade("-2")
    host.downgrade("base")
    assert tables(host.url) == {"alembic_version", *OURS}


def test_a_link_waits_for_our_tables(project: Callable[..., Project]) -> None:
    host = project()
    host.models(WITH_LINK)
    written = host.revise("tickets")
    assert "sa.Column('context_id', ctxstore.store.types.Uuid(), nullable=True)" in written
    host.upgrade()
    host.check()
    with pytest.raises(DatabaseNotUpgradedError, match="ctxstore db upgrade"):
        talk(host, "1")
    with Store(host.url) as store:
        store.upgrade()
        assert talk(host, "1", "2") == ["1", "pong", "2", "pong"]
        assert [c.message_count for c in store.list()] == [4]
    host.check()


def test_our_lineage_inside_the_hosts(project: Callable[..., Project]) -> None:
    host = project(versions=(migrations_path() / "versions",))
    host.upgrade("heads")
    assert tables(host.url) == {"alembic_version", *(OURS - {"ctxstore_alembic_version"})}
    host.models(WITH_LINK)
    place = str(host.folder / "versions")
    host.revise("tickets", head="base", depends_on="ctxstore@head", splice=True, version_path=place)
    with pytest.raises(CommandError, match="heads"):
        host.upgrade("head")
    host.upgrade("heads")
    assert talk(host, "1") == ["1", "pong"]
    host.models(WITH_LINK + OTHER)
    host.revise("others", head=next(h for h in host.heads() if not h.startswith("ctxstore")))
    host.upgrade("heads")
    host.check()
    assert "others" in tables(host.url)
    with Store(host.url) as store:
        assert [c.message_count for c in store.list()] == [2]


def test_without_the_hook_autogenerate_would_drop_our_tables(project: Callable[..., Project]) -> None:
    host = project(hooks=False)
    with Store(host.url) as store:
        store.upgrade()
    assert "op.drop_table('ctxstore_contexts')" in host.revise("a mistake")
