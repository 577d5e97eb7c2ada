"""A row that a newer program has written since this one read it is left as it is."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from ctxstore.errors import SchemaVersionError

from .hosts import Ticket, saved


def test_an_older_program_never_overwrites_a_newer_row(host: sa.Engine) -> None:
    key = saved(host, Ticket, "one")
    with Session(host) as session:
        live = session.get_one(Ticket, key).context
        session.rollback()
        with host.begin() as c:
            moved = sa.update(Ticket.__table__).values(context_schema_version=99)
            assert c.execute(moved).rowcount == 1
            before = c.execute(sa.select(Ticket.__table__)).one()
        live.talk("two")
        with pytest.raises(SchemaVersionError, match="99"):
            session.commit()
        session.rollback()
    with host.connect() as c:
        assert c.execute(sa.select(Ticket.__table__)).one() == before
