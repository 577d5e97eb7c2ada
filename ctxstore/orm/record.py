"""The keeper of a context that belongs to a host's row, and what becomes of its turns in the host's transactions.

A keeper writes nothing by itself: ``keep`` assigns to the row, the host's flush writes. What the live context stands on
is the very object that the row's attribute holds; when another one is there (an expiry and a reload, a refresh, an
assignment) it is compared, and a context that the row no longer holds is stale. Turns are remembered until the host's
transaction ends: a rollback of it, or of the savepoint they were made in, takes them back, which makes the live context
stale; what was taken back is ``ctx.turn``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstanceState, Mapper, Session, SessionTransaction
from sqlalchemy.orm.exc import ObjectDeletedError
from sqlalchemy.util.concurrency import in_greenlet

from .. import clock
from ..context import Context
from ..errors import ConfigurationError, ContextNotFoundError, CtxstoreError, StaleContextError
from ..keeper import Step
from ..store.failures import Patience, error_code
from ..store.store import Store
from ..usage import Turn

__all__ = ["KEY", "RecordKeeper", "greenlet_needed", "read", "translated"]

KEY = "ctxstore"
"""Under which a session, a row's state and a mapped class keep what is ours in their ``info``."""

log = logging.getLogger("ctxstore")

_ABSENT = object()
_CONFLICTS = ("40001", "1020")
"""PostgreSQL's and MariaDB's way to say: what you read has changed, read again and decide."""


class RecordKeeper:
    """Keeps the turns of ``ctx`` on ``record``; ``key`` is the attribute whose value says that it still does."""

    def __init__(self, record: Any, row: InstanceState[Any], key: str, ctx: Context, store: Store | None) -> None:
        self.record, self.row, self.key, self.ctx, self.store = record, row, key, ctx, store
        self.value: Any = row.dict.get(key)
        """What the row's attribute holds as long as the live context is current."""
        self.written = True
        """Whether ``value`` is in the database, as this transaction sees it."""
        self.stale = False
        self.turns: list[Turn] = []
        """What was kept since the last commit."""
        self.within: set[SessionTransaction] = set()
        """The transactions and savepoints whose rollback takes ``turns`` back."""
        self._warned: UUID | None = None
        ctx._bind(self)
        ctx.state.on_change = self._edited

    def __reduce__(self) -> Any:
        return _nothing, ()  # a row that is pickled takes its columns along, not the live context

    # -- the port

    def take(self, step: Step) -> None:
        """Carry out ``step``: no IO, the host's flush writes.

        Raises:
            StaleContextError: the row no longer holds what the live context stands on.
        """
        if step.kind == "begin":
            self._check()
            self._warn(step.turn.id)
        elif step.kind == "keep":
            self._keep(step.turn)
        else:
            self._failed(step.turn)
            if self.ctx.state.changes():  # edits that a tool or a callback made in mid-turn
                self._keep(Turn(clock.new_id(), self.ctx.id))

    async def atake(self, step: Step) -> None:
        """``take`` for asyncio."""
        self.take(step)

    def _edited(self) -> None:
        """A role helper or the like changed the state: the row has to know at once, or no flush would come."""
        if self.ctx._interruption is None:  # in a turn the turn saves
            self._keep(Turn(clock.new_id(), self.ctx.id))

    def _keep(self, turn: Turn) -> None:
        self._check()
        if self.ctx.state.changes():
            self._assign(turn)
            self.written = False
            self._join(self.row.session)

    def _assign(self, turn: Turn) -> None:
        """Put what is new on the row."""
        raise NotImplementedError

    def _failed(self, turn: Turn) -> None:
        """A request gave no reply: what it paid for waits for the next flush, where there is a ledger."""
        raise NotImplementedError

    # -- is it still what the row holds

    def current(self, load: bool) -> bool:
        """Whether the row still holds what the live context stands on; with ``load`` an expired row is read.

        Where reading is not possible (no session, or asyncio outside of its greenlet) the flush decides.
        """
        if self.stale:
            return False
        held = self.row.dict.get(self.key, _ABSENT)
        if held is self.value:
            return True
        if held is _ABSENT:
            if not self.row.has_identity and self.value is None:
                return True
            if self.written:
                if not load or not self._can_read():
                    return True
                (held,) = read(self.record, self.key)
        if not self.written or not self._same(held, load):
            self.lose()
            return False
        self.value = held
        return True

    def _can_read(self) -> bool:
        session = self.row.session
        return session is not None and not greenlet_needed(session, self.row.mapper)

    def _same(self, held: Any, load: bool) -> bool:
        """Whether ``held``, another object than ``value``, is the same save; as far as is known without ``load``."""
        raise NotImplementedError

    def _check(self) -> None:
        if not self.current(load=False):
            raise StaleContextError(
                f"the {type(self.record).__name__} row no longer holds what this context stands on: it was rolled "
                "back, refreshed or changed since; take record.context anew"
            )

    def _warn(self, turn_id: UUID) -> None:
        session = self.row.session
        if session is not None and session.in_transaction() and self._warned != turn_id:
            self._warned = turn_id
            if log.isEnabledFor(logging.DEBUG):
                log.warning(
                    "a turn begins while its session is in a transaction, which may hold a connection as long as the "
                    "provider thinks: load, session.commit(), talk, session.commit()"
                )

    # -- what becomes of it

    def flush(self, connection: sa.Connection) -> None:
        """Write what is to be written beside the row, on the connection of the flush."""
        try:
            with translated(self.turn()):
                self._check_store(connection)
                self._write(connection)
        except (StaleContextError, ContextNotFoundError):
            self.lose()
            raise
        self.written = True
        self._join(self.row.session)

    def _check_store(self, connection: sa.Connection) -> None:
        if self.store is not None and not self.store._runner.is_beside(connection):
            model = type(self.record).__name__
            raise ConfigurationError(
                f"{model}.context_options gives {self.store!r}, which is of another database than this row; what it "
                "used is written beside it, in its transaction: give a Store of the row's own database, or leave "
                "'store' out"
            )

    def _write(self, connection: sa.Connection) -> None:
        raise NotImplementedError

    def turn(self) -> Turn | None:
        """What was kept since the last commit, as one turn; None when nothing was."""
        turns = self._since()
        if not turns:
            return None
        messages = tuple(m for turn in turns for m in turn.messages)
        usage = tuple(entry for turn in turns for entry in turn.usage)
        return Turn(turns[-1].id, self.ctx.id, messages, usage)

    def _since(self) -> list[Turn]:
        return self.turns

    def lose(self) -> None:
        """The row went another way: this live context is of no use any more, and what it had kept is ``ctx.turn``."""
        if not self.stale:
            self.stale = True
            self.ctx.state.lost = self.turn() or self.ctx.state.lost

    def _join(self, session: Session | None) -> None:
        if session is None:
            return
        session.info.setdefault(KEY, set()).add(self)
        transaction = session.get_nested_transaction() or session.get_transaction()
        while transaction is not None:
            self.within.add(transaction)
            transaction = transaction.parent

    def committed(self) -> None:
        """The host's transaction was committed."""
        self.within.clear()
        if self.written:
            self.turns.clear()

    def taken_back(self) -> None:
        """The transaction that a turn was kept in is gone. A new row is transient again and keeps what it holds."""
        holds = self.row.dict.get(self.key, _ABSENT) is self.value
        if not holds or (self.written and self.row.key is not None):
            self.lose()
        elif self.written:
            self._unwritten()
            self.written = False

    def _unwritten(self) -> None:
        """The INSERT of the row was rolled back: the next one writes everything again."""
        raise NotImplementedError


def _nothing() -> None:
    return None


def greenlet_needed(session: Session, mapper: Mapper[Any]) -> bool:
    """Whether a statement on ``session`` would have to wait where nobody can."""
    return session.get_bind(mapper).dialect.is_async and not in_greenlet()


def read(record: Any, *keys: str) -> tuple[Any, ...]:
    """The values of ``record``'s attributes, loaded if need be.

    Raises:
        ConfigurationError: they are not loaded and cannot be here; the message says how.
        ContextNotFoundError: the row was deleted.
    """
    row: InstanceState[Any] = sa.inspect(record)
    model, session = type(record).__name__, row.session
    if row.has_identity and not all(key in row.dict for key in keys):
        if session is None:
            raise ConfigurationError(
                f"{', '.join(keys)} of this {model} are not loaded and it belongs to no session: load them before the "
                "session is closed, or give the session expire_on_commit=False"
            )
        if greenlet_needed(session, row.mapper):
            raise ConfigurationError(
                f"{', '.join(keys)} of this {model} are not loaded, and under asyncio an attribute cannot load itself: "
                f"await session.refresh(record, {list(keys)}) first"
            )
    try:
        return tuple(getattr(record, key) for key in keys)
    except ObjectDeletedError as error:
        raise ContextNotFoundError(f"this {model} row was deleted") from error


@contextmanager
def translated(turn: Turn | None) -> Iterator[None]:
    """What the database says to a statement of ours, in our words, with the turn that it kept from being saved."""
    try:
        yield
    except DBAPIError as error:
        if error_code(error) in _CONFLICTS:
            raise StaleContextError(
                "another writer changed this row since it was read here; roll back, read it again and repeat the turn",
                turn=turn,
            ) from error
        try:
            Patience(tries=1).wait(error)
        except CtxstoreError as found:
            found.turn = turn
            raise
        raise
    except CtxstoreError as error:
        error.turn = turn
        raise


# -- the host's transactions


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    if session.get_nested_transaction() is None:
        for keeper in session.info.pop(KEY, ()):
            keeper.committed()


@event.listens_for(Session, "after_soft_rollback")
def _rolled_back(session: Session, previous: SessionTransaction) -> None:
    """A savepoint was rolled back, or a flush failed, which takes everything back up to the next savepoint."""
    gone: set[SessionTransaction] = set()
    transaction: SessionTransaction | None = previous
    while transaction is not None:
        gone.add(transaction)
        transaction = None if transaction.nested else transaction.parent
    for keeper in tuple(session.info.get(KEY, ())):
        if keeper.within & gone:
            keeper.within -= gone
            keeper.taken_back()


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    """The transaction ended. Who is still here was not committed: it was rolled back, or the session was closed."""
    if transaction.parent is None:
        for keeper in session.info.pop(KEY, ()):
            keeper.within.clear()
            keeper.taken_back()
