"""Conversations that belong to the host's own rows.

::

    class Ticket(HasContext, Base):
        __tablename__ = "tickets"
        id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)

        def context_options(self):
            return {"provider": llm, "owner": self.team, "store": store}

    with Session(engine) as session:
        ticket = session.get(Ticket, key)
        session.commit()                      # no connection is held while the provider thinks
        ticket.context.talk("What is left?")
        session.commit()                      # the turn, its usage and the rest of the row in one transaction

The host owns the unit of work: nothing here commits, flushes or opens a connection of its own. ``talk`` assigns to the
row, the host's flush writes, and compares what it replaces; a rollback takes back what it takes back.

``HasContext`` adds the columns, ``HasContextColumn`` uses one that is there, ``HasContextLink`` keeps the id of a
context in ctxstore's own tables.
"""

from __future__ import annotations

from .bulk import amigrate_payloads, migrate_payloads, migrate_table
from .models import HasContext, HasContextColumn, HasContextLink

__all__ = ["HasContext", "HasContextColumn", "HasContextLink", "amigrate_payloads", "migrate_payloads", "migrate_table"]
