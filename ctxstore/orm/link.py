"""A context in ctxstore's own tables, and its id on the host's row: a turn appends, in the host's transaction."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState, Mapper, attributes

from .. import clock
from ..context import Context
from ..errors import ConfigurationError, ContextNotFoundError
from ..payload.schema import Document
from ..store import ledger, repository
from ..store.store import Store
from ..usage import Turn
from .column import identity_of, name_record
from .options import options_of
from .record import KEY, RecordKeeper, greenlet_needed, read, translated

__all__ = ["LINK", "LinkBinding"]

LINK = "context_id"


class LinkBinding:
    """How one mapped class finds its contexts in ctxstore's tables."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self.mapper = mapper
        self.model: str = mapper.class_.__name__
        if LINK not in mapper.column_attrs:
            raise ConfigurationError(f"{self.model} has no column {LINK!r}, which HasContextLink adds to its table")

    def connection(self, record: Any, row: InstanceState[Any]) -> sa.Connection:
        """The connection of the record's session, in its transaction.

        Raises:
            ConfigurationError: it belongs to no session, or to one of asyncio and this is no place to wait.
        """
        session = row.session
        if session is None:
            raise ConfigurationError(f"this {self.model} row belongs to no session, so its context cannot be read")
        if greenlet_needed(session, self.mapper):
            raise ConfigurationError(
                f"the context of a {self.model} row is read from ctxstore's tables, which under asyncio needs "
                "await session.run_sync(lambda _: record.context)"
            )
        return session.connection({"mapper": self.mapper})

    def open(self, record: Any, row: InstanceState[Any]) -> RecordKeeper:
        """A live context of what stands in ctxstore's tables, or a new one."""
        options = options_of(record)
        (linked,) = read(record, LINK)
        if linked is None:
            identity = clock.parse_id(options.id) if options.id is not None else identity_of(self.mapper, row)
            ctx = Context(options.provider, id=identity or clock.new_id(), record=record, **options.context)
            ctx.state.owner = options.owner
            ctx.state.stands_on([], 0, "")
            ctx.state.last_save = None
            name_record(self.mapper, record, row, ctx.id)
        else:
            with translated(None):
                found = repository.load(self.connection(record, row), linked)
            ctx = Context._from_document(options.provider, found.document, record=record, **options.context)
            ctx.state.owner = found.owner
            ctx.state.stands_on(found.positions, found.next_position, found.token)
        return LinkKeeper(self, record, row, ctx, options.store)

    def write(self, connection: sa.Connection, record: Any) -> None:
        """The flush comes to ``record``: append what is new."""
        row: InstanceState[Any] = sa.inspect(record)
        keeper = row.info.get(KEY)
        if keeper is not None and not keeper.written and row.dict.get(LINK) is keeper.value:
            keeper.flush(connection)

    def deleted(self, connection: sa.Connection, record: Any) -> None:
        """The row goes, and the conversation with it; the ledger stays."""
        (linked,) = read(record, LINK)
        if linked is not None:
            with translated(None):
                try:
                    repository.delete(connection, linked, None, False)
                except ContextNotFoundError:
                    pass


class LinkKeeper(RecordKeeper):
    """Appends to ctxstore's tables in the flush of the host's row."""

    def __init__(
        self, binding: LinkBinding, record: Any, row: InstanceState[Any], ctx: Context, store: Store | None
    ) -> None:
        self.binding = binding
        self._entries: list[dict[str, Any]] = []
        self._last: UUID = ctx.id
        self._born = False
        super().__init__(record, row, LINK, ctx, store)

    def _same(self, held: Any, load: bool) -> bool:
        if held is None or held != self.ctx.id:
            return False
        if not load:
            return True
        session = self.row.session
        if session is None or greenlet_needed(session, self.binding.mapper):
            return True
        with translated(None):
            standing = repository.stands(self.binding.connection(self.record, self.row), held)
        return standing == self.ctx.state.last_save

    def _assign(self, turn: Turn) -> None:
        self._last = turn.id
        # an id of its own at every turn: the row is dirty, and says by the very object that it still holds this turn
        self.value = UUID(int=self.ctx.id.int)
        attributes.set_attribute(self.record, LINK, self.value)
        self.value = self.row.dict[LINK]

    def _failed(self, turn: Turn) -> None:
        self._entries += ledger.entry_rows(turn.usage, self.ctx.state.owner)

    def _write(self, connection: sa.Connection) -> None:
        state = self.ctx.state
        connection = connection.execution_options(preserve_rowcount=True)
        work, turn = repository.prepare(state), self._unsaved()
        if state.last_save is None:
            repository.create(connection, work)
            self._born = True
        else:
            repository.save(connection, work)
        state.saved(work.token, work.revision)
        self.turns.append(turn)
        if self._entries:
            ledger.record(connection, self._entries)
            self._entries = []

    def _unsaved(self) -> Turn:
        changes = self.ctx.state.changes()
        return Turn(self._last, self.ctx.id, tuple(changes.live), tuple(changes.usage))

    def _since(self) -> list[Turn]:
        return [*self.turns, *([] if self.written else [self._unsaved()])]

    def _unwritten(self) -> None:
        if not self._born:
            self.lose()
            return
        state, turn = self.ctx.state, self.turn()
        state.positions, state.next_position, state.last_save = [], 0, None
        state.take(Document(state.head, state.messages))
        state.pending_usage = []
        self._entries += ledger.entry_rows(turn.usage if turn is not None else (), state.owner)

    def committed(self) -> None:
        super().committed()
        self._born = False
