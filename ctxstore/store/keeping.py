"""The keeper of a store: what is written before each request of a turn, after it, and when it failed.

Each live context has one of its own, which remembers the save whose answer never came, so that it is recognised as
done later and not mistaken for another writer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .. import clock, jsontext
from ..errors import (
    ConfigurationError,
    ContextLockedError,
    ContextNotFoundError,
    CtxstoreError,
    PayloadError,
    SchemaVersionError,
    StaleContextError,
)
from ..keeper import Step
from ..messages import Message
from ..payload import codec
from ..payload.checks import kind
from ..payload.upcasts import current
from ..state import State
from . import repository
from .ledger import entry_rows
from .running import Flow, Runner, job
from .types import NAME_LENGTH

if TYPE_CHECKING:
    from .repository import Work

__all__ = ["CONFLICTS", "StoreKeeper", "flight_text"]

CONFLICTS = (StaleContextError, ContextLockedError, ContextNotFoundError, SchemaVersionError)
"""The refusals of a save that leave the row to somebody else."""


class StoreKeeper:
    """Keeps the turns of one live context in ``runner``'s database.

    ``lease_seconds`` is the length of the lease it is held under: the least that a request extends it to, and what a
    save brings it back to.
    """

    def __init__(self, runner: Runner, *, record_in_flight: bool = True, lease_seconds: float = 0.0) -> None:
        self.runner = runner
        self.record_in_flight = record_in_flight
        self.lease_seconds = lease_seconds
        self._noted: set[UUID] = set()
        """The turns whose prompt may be in flight; earlier ones are among them, whose save or note had failed."""
        self._asked: UUID | None = None
        """The one of them whose request is out."""
        self._unanswered: Work | None = None

    def take(self, step: Step) -> None:
        """Carry out ``step``.

        Raises:
            StaleContextError: another writer saved first; ``.turn`` is what this one did, once something was paid.
            ContextLockedError, ContextNotFoundError, SchemaVersionError: nor may this writer go on.
            StoreUnavailableError: the database cannot be reached; the state still holds what is unsaved.
        """
        self.runner.drive(self._flow(step))

    async def atake(self, step: Step) -> None:
        """``take`` for asyncio."""
        await self.runner.adrive(self._flow(step))

    def _flow(self, step: Step) -> Flow[None]:
        if step.kind == "begin":
            return self._begin(step)
        if step.turn.id == self._asked:
            self._asked = None
        if step.kind == "keep":
            return self.save(step)
        return self._close(step)

    def _begin(self, step: Step) -> Flow[None]:
        state, turn = step.state, step.turn
        _check_names(state)
        yield from self._settle(state)
        if state.last_save is None:
            yield from self._create(state)
        unsaved = [*state.changes().live, *turn.messages]
        flight = repository.Flight(
            id=state.id,
            base=state.last_save or "",
            epoch=state.lease_epoch,
            turn_id=turn.id,
            revision=state.head.revision,
            payload=flight_text(unsaved) if self.record_in_flight else None,
            created_at=clock.now(),
            seconds=max(step.seconds, self.lease_seconds),
        )
        if self.record_in_flight:
            self._noted.add(turn.id)
        yield from job(repository.begin, flight)
        self._asked = turn.id

    def save(self, step: Step, **origin: Any) -> Flow[None]:
        """Write what is new in the state, if anything is; ``origin`` says what a new context was forked from."""
        state = step.state
        _check_names(state)
        yield from self._settle(state)
        if state.last_save is None:
            yield from self._create(state, **origin)
            return
        changes = state.changes()
        landed = tuple(self._noted - {self._asked})
        if not (changes.appended or changes.retired or changes.head):
            if changes.usage or landed:
                yield from job(repository.close, state.id, landed, entry_rows(changes.usage, state.owner))
                state.pending_usage = []
                self._noted.difference_update(landed)
            return
        work = self._unanswered = repository.prepare(state, landed=landed, lease_seconds=self.lease_seconds)
        try:
            yield from job(repository.save, work)
        except CONFLICTS as error:
            self._unanswered = None
            yield from self._lost(step, error)
            raise
        self._noted.difference_update(landed)
        self._written(state, work)

    def _create(self, state: State, **origin: Any) -> Flow[None]:
        work = self._unanswered = repository.prepare(state, **origin)
        try:
            yield from job(repository.create, work)
        except StaleContextError:
            self._unanswered = None
            raise
        self._written(state, work)

    def _written(self, state: State, work: Work) -> None:
        self._unanswered = None
        if state.edits == work.edits:
            state.saved(work.token, work.revision)
        else:
            _take_over(state, work)

    def _lost(self, step: Step, error: CtxstoreError) -> Flow[None]:
        """The turn lost its race: it is in the error, its attempts go to the ledger, its prompt leaves the flight."""
        turn, unsaved = step.turn, step.state.changes()
        if not turn.messages:  # a save by hand: the state still holds it all
            error.turn = replace(turn, messages=tuple(unsaved.live), usage=tuple(unsaved.usage))
        else:
            error.turn = turn
        landed = (turn.id,) if turn.id in self._noted else ()
        rows = entry_rows(repository.lost(turn.usage), step.state.owner)
        try:
            yield from job(repository.close, step.state.id, landed, rows)
            self._noted.discard(turn.id)
        except CtxstoreError as second:
            error.add_note(
                f"and what it paid for is not in the ledger ({second}); store.record_usage(error.turn) adds it"
            )

    def _close(self, step: Step) -> Flow[None]:
        """A request gave no reply: its attempts go to the ledger, and after ``fail`` its prompt leaves the flight."""
        turn = step.turn
        landed = (turn.id,) if step.kind == "fail" else ()
        if landed or turn.usage:
            yield from job(repository.close, step.state.id, landed, entry_rows(turn.usage, step.state.owner))
        self._noted.discard(turn.id)

    def _settle(self, state: State) -> Flow[None]:
        """When an earlier save never got its answer: see whether it got through, and go on from there.

        Raises:
            StaleContextError: it did, but the state is no longer what was saved then.
        """
        work = self._unanswered
        if work is None:
            return
        token = yield from job(repository.stands, work.id)
        self._unanswered = None
        if token == work.token and not _take_over(state, work):
            raise StaleContextError(
                f"context {work.id} was saved by a try whose answer was lost, and was changed here since; load it again"
            )


def _take_over(state: State, work: Work) -> bool:
    """Mark in ``state`` what ``work`` wrote; False when the state no longer begins with it."""
    changes = state.changes()
    count = len(work.appended)
    old = changes.first_position
    retired = sum(min(last + 1, old) - first for first, last in work.retired if first < old)
    same = len(changes.appended) >= count and all(a is b for a, b in zip(work.appended, changes.appended, strict=False))
    if state.last_save != work.base or not same or len(changes.retired) < retired:
        return False
    written = {row["id"] for row in work.usage}
    state.saved_partly(work.token, work.revision, count, retired, written)
    return True


def _check_names(state: State) -> None:
    for what, name in (("provider", state.head.provider), ("model", state.head.model)):
        if name is not None and len(name) > NAME_LENGTH:
            raise ConfigurationError(f"the {what} may have {NAME_LENGTH} characters, {name[:40]!r}... has {len(name)}")


def flight_text(messages: Sequence[Message]) -> str:
    """The payload of a row in flight."""
    texts = (codec.dump_message(m, f"prompt[{i}]") for i, m in enumerate(messages))
    return f'{{"schema_version":{current()},"messages":[{",".join(texts)}]}}'


def flight_messages(text: str, context_id: UUID) -> list[Message]:
    """The messages of a row in flight.

    Raises:
        SchemaVersionError: a newer program wrote it.
        PayloadError: it is none.
    """
    data = jsontext.loads(text)
    if not isinstance(data, dict):
        raise PayloadError(f"a prompt in flight is a JSON object, this is {kind(data)}")
    version = codec.check_version(data.get("schema_version"))
    listed = data.get("messages")
    if not isinstance(listed, list):
        raise PayloadError(f"messages: must be a list, this is {kind(listed)}")
    texts = [jsontext.dumps(m) for m in listed]
    return codec.load_messages(texts, [version] * len(texts), context_id=context_id)
