"""``Store``: the door to contexts in a SQL database.

Every verb that waits has a twin with an ``a`` before it. A verb names what is run and says nothing about how; the
SQL stands, once, in the modules beside this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from .. import clock
from ..context import Context
from ..errors import ConfigurationError, StaleContextError
from ..keeper import FREE, Step
from ..usage import Turn
from . import migrations, repository
from .engines import Synchronous
from .keeping import StoreKeeper
from .lease import AsyncLease, Lease
from .moving import Moving
from .options import ContextOptions, NewContextOptions
from .running import Flow, Runner, job
from .types import check_owner
from .verbs import Verbs

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy.ext.asyncio import AsyncEngine

    from ..providers.base import Provider

__all__ = ["Store"]

APPEND_TRIES = 20


class Store(Verbs, Moving):
    """Contexts in a SQL database.

    Args:
        database: ``sqlite:///file.db``, ``postgresql://...``, ``mysql://...``, ``mariadb://...``, or an ``Engine`` or
            ``AsyncEngine`` of the host's, which stays as it is. A URL serves both worlds; an ``Engine`` has no a-verbs
            and an ``AsyncEngine`` only those.
        record_in_flight: whether the prompt of a request is noted before it is sent, see ``in_flight``.
        synchronous: on SQLite files, ``FULL`` lets a saved turn survive a power cut, ``NORMAL`` is faster.
        busy_timeout: seconds that SQLite waits for another writer.

    Tables are never made implicitly: call ``upgrade()`` or run ``ctxstore db upgrade``. Every verb raises
    ``DatabaseNotUpgradedError`` when they are missing and ``StoreUnavailableError`` when the database cannot be
    reached or stays busy; after the latter the next call works as soon as the database does.

    Raises:
        ConfigurationError: the URL is none, or its driver is not installed.
    """

    def __init__(
        self,
        database: str | URL | Engine | AsyncEngine,
        *,
        record_in_flight: bool = True,
        synchronous: Synchronous = "FULL",
        busy_timeout: float = 30.0,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise ConfigurationError(f"synchronous is FULL or NORMAL, not {synchronous!r}")
        self._runner = Runner(database, synchronous=synchronous, busy_timeout=busy_timeout)
        self.record_in_flight = record_in_flight

    def __repr__(self) -> str:
        return repr(self._runner)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def engine(self) -> Engine:
        """The synchronous engine, for queries of your own."""
        return self._runner.engine

    def close(self) -> None:
        """Close the store's own connections; a host's engine is left as it is."""
        self._runner.close()

    async def aclose(self) -> None:
        """``close`` for asyncio."""
        await self._runner.aclose()

    # -- tables

    def upgrade(self, revision: str = "head") -> None:
        """Make the tables, or bring them up to date; safe when several processes start at once."""
        self._runner.run(migrations.upgrade, revision)

    async def aupgrade(self, revision: str = "head") -> None:
        """``upgrade`` for asyncio."""
        await self._runner.arun(migrations.upgrade, revision)

    def current(self) -> str | None:
        """The revision that the tables are at, None when there are none of ctxstore's."""
        return self._runner.run(migrations.current)

    async def acurrent(self) -> str | None:
        """``current`` for asyncio."""
        return await self._runner.arun(migrations.current)

    # -- live contexts

    def create(self, provider: Provider, *, owner: str | None = None, **options: Unpack[NewContextOptions]) -> Context:
        """A new context, saved and bound: every completed request is saved before ``talk`` returns.

        ``owner`` is whoever the conversation belongs to, up to 191 characters; ``options`` are those of ``Context``.

        Raises:
            ConfigurationError: the owner or an option cannot be.
            StaleContextError: there is a context with this ``id`` already.
        """
        ctx, flow = self._create(provider, owner, options)
        self._runner.drive(flow)
        return ctx

    async def acreate(
        self, provider: Provider, *, owner: str | None = None, **options: Unpack[NewContextOptions]
    ) -> Context:
        """``create`` for asyncio."""
        ctx, flow = self._create(provider, owner, options)
        await self._runner.adrive(flow)
        return ctx

    def _create(self, provider: Provider, owner: str | None, options: Any) -> tuple[Context, Flow[None]]:
        check_owner(owner)
        ctx = Context(provider, **options)
        ctx.state.owner = owner
        keeper = self._keeper()
        ctx._bind(keeper)
        return ctx, keeper.save(Step("keep", ctx.state, Turn(clock.new_id(), ctx.id)))

    def load(
        self, id: UUID | str, provider: Provider, *, owner: str | None = None, **options: Unpack[ContextOptions]
    ) -> Context:
        """The context as its last save left it, bound. Provider and tools are handed in anew.

        Raises:
            ContextNotFoundError: there is none with this id, or it is another owner's.
            SchemaVersionError: a newer program saved it; the row is left alone.
            PayloadError: what stands there is no context.
        """
        return self._runner.drive(self._load(clock.parse_id(id), provider, owner, options))

    async def aload(
        self, id: UUID | str, provider: Provider, *, owner: str | None = None, **options: Unpack[ContextOptions]
    ) -> Context:
        """``load`` for asyncio."""
        return await self._runner.adrive(self._load(clock.parse_id(id), provider, owner, options))

    def _load(
        self, id: UUID, provider: Provider, owner: str | None, options: Any, lease_seconds: float = 0.0
    ) -> Flow[Context]:
        found = yield from job(repository.load, id, owner)
        return Context._from_store(
            provider,
            found.document,
            found.positions,
            found.next_position,
            found.token,
            keeper=self._keeper(lease_seconds),
            owner=found.owner,
            **options,
        )

    def _keeper(self, lease_seconds: float = 0.0) -> StoreKeeper:
        return StoreKeeper(self._runner, record_in_flight=self.record_in_flight, lease_seconds=lease_seconds)

    def lease(
        self,
        id: UUID | str,
        provider: Provider,
        *,
        wait: float = 30.0,
        length: float = 300.0,
        owner: str | None = None,
        **options: Unpack[ContextOptions],
    ) -> Lease:
        """``with store.lease(id, llm) as ctx``: the context, and nobody else may save it until the block ends.

        ``wait`` is how many seconds to wait for another's lease, ``length`` how long ours lasts when this process dies;
        each request extends it by the time that request may take, each save brings it back to ``length``. It is given
        back when the block ends, however.

        Raises:
            ContextLockedError: another writer held it all the time; ``.holder`` and ``.until`` name it.
            ContextNotFoundError: there is no such context, or it is another owner's.
        """
        identity = clock.parse_id(id)
        return Lease(
            self._runner, identity, owner, wait, length, lambda s: self._load(identity, provider, owner, options, s)
        )

    def alease(
        self,
        id: UUID | str,
        provider: Provider,
        *,
        wait: float = 30.0,
        length: float = 300.0,
        owner: str | None = None,
        **options: Unpack[ContextOptions],
    ) -> AsyncLease:
        """``lease`` for asyncio: ``async with store.alease(id, llm) as ctx``."""
        identity = clock.parse_id(id)
        return AsyncLease(
            self._runner, identity, owner, wait, length, lambda s: self._load(identity, provider, owner, options, s)
        )

    # -- saving

    def save(self, ctx: Context, on_conflict: Literal["raise", "append"] = "raise") -> None:
        """Write what is new in ``ctx``, and bind it to this store if it is bound to nothing. No change, no write.

        It waits for a turn that is under way in another thread or task; a tool or a callback of the turn saves at once.

        With ``on_conflict="append"`` a lost race ends well: the context takes over what the other writer saved, and
        the turn that was lost and what else is unsaved here is put after it, whole.

        Raises:
            StaleContextError: another writer saved first; with ``append`` only when messages were taken out here
                (compacted, cleared, edited), which no order can make up for, or both changed the metadata.
            ContextLockedError: another writer holds the lease.
            ContextNotFoundError: it was deleted.
            UnsupportedValueError: something in it has no form in JSON; nothing was written.
        """
        with ctx._alone():
            self._runner.drive(self._save(ctx, on_conflict))

    async def asave(self, ctx: Context, on_conflict: Literal["raise", "append"] = "raise") -> None:
        """``save`` for asyncio."""
        async with ctx._aalone():
            await self._runner.adrive(self._save(ctx, on_conflict))

    def _save(self, ctx: Context, on_conflict: str) -> Flow[None]:
        if on_conflict not in ("raise", "append"):
            raise ConfigurationError(f"on_conflict is 'raise' or 'append', not {on_conflict!r}")
        keeper = self._keeper_of(ctx)
        if on_conflict == "append" and ctx.state.lost is not None:
            yield from self._catch_up(ctx)
        for left in range(APPEND_TRIES, -1, -1):
            try:
                yield from keeper.save(Step("keep", ctx.state, Turn(clock.new_id(), ctx.id)))
                return
            except StaleContextError:
                changes = ctx.state.changes()
                if on_conflict == "raise" or not left or ctx.state.last_save is None or changes.retired or changes.dead:
                    raise
            yield from self._catch_up(ctx)

    def _catch_up(self, ctx: Context) -> Flow[None]:
        """Take over what stands in the store, and put what was lost or unsaved here after it."""
        state = ctx.state
        found = yield from job(repository.load, ctx.id)
        turn, unsaved, usage = state.lost, state.changes().live, state.pending_usage
        known = {m.id for m in found.document.messages}
        head, there, base = state.head, found.document.head.metadata, state.saved_metadata
        if head.metadata == base:
            head.metadata = there
        elif there not in (base, head.metadata):
            raise StaleContextError(
                f"the metadata of context {ctx.id} were changed here and by another writer; load it again and set them"
            )
        state.loaded(found.document, found.positions, found.next_position, found.token)
        # whom this context talks to is its own; the other writer may have gone to another provider
        state.head.provider, state.head.model, state.head.mode = head.provider, head.model, head.mode
        if head.metadata != there:
            state.head.metadata = head.metadata
            state.touch()
        state.pending_usage = usage
        state.append(m for m in [*(turn.messages if turn is not None else ()), *unsaved] if m.id not in known)

    def _keeper_of(self, ctx: Context) -> StoreKeeper:
        keeper = ctx._keeper
        if isinstance(keeper, StoreKeeper):
            if keeper.runner is not self._runner:
                raise ConfigurationError(
                    "this context is bound to another Store; import_payload(ctx.to_payload()) makes a copy of it here"
                )
            return keeper
        if keeper is not FREE:
            raise ConfigurationError("this context is bound to a record of the host's and saved with it")
        keeper = self._keeper()
        ctx._bind(keeper)
        return keeper
