"""The lines of an export: one conversation each, with its history, its prompts in flight and its ledger.

::

    {"ctxstore_export":1,"context":{columns},"payload":{head},"messages":[...],"in_flight":[...],"usage":[...],"hash":"..."}
    {"ctxstore_export":1,"ledger":"<id of a deleted context>","usage":[...],"hash":"..."}
    {"ctxstore_export":1,"end":{"contexts":2,"ledgers":1}}

Rows are in them as they are stored, retired messages at their positions too; payloads are JSON in JSON, in one form for
one value, so that equal conversations are equal lines in every database. ``hash`` is the SHA-256 of the line before it.
What depends on the place and not on the conversation is left out: the token of the last save, and leases.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from .. import clock, jsontext
from ..errors import CtxstoreError, PayloadError
from ..messages import Message
from ..payload import codec
from ..payload.checks import check_numbers, check_time, kind
from ..payload.schema import MESSAGE_DEPTH, Document
from ..state import State
from .keeping import flight_messages
from .repository import derived, message_row
from .tables import TOKEN_LENGTH, contexts, in_flight, messages, usage
from .types import JsonText, UtcDateTime, Uuid, check_owner, plain

__all__ = [
    "FORMAT",
    "Line",
    "Parcel",
    "deleted",
    "end_line",
    "ledger_lines",
    "ledgers",
    "lines",
    "parcel",
    "snapshot",
]

FORMAT = 1
"""The version of the lines' form; payloads in them have their own."""

HEAD = [c for c in contexts.c if c.name not in ("payload", "last_save", "locked_by", "locked_until", "lease_epoch")]
MESSAGE = [messages.c[n] for n in ("position", "schema_version", "id", "retired_at_revision", "created_at", "payload")]
FLIGHT = [c for c in in_flight.c if c.name != "context_id"]
USAGE = [c for c in usage.c if c.name != "context_id"]

_DOCUMENT = MESSAGE_DEPTH - 2
_DEPTHS = {messages.name: MESSAGE_DEPTH, in_flight.name: _DOCUMENT}

_HASH = re.compile(rb',"hash":"([0-9a-f]{64})"\}\s*\Z')


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end; ``text`` is None when the row cannot be read, and ``reason`` says why."""

    id: UUID
    text: str | None
    hash: str | None
    messages: int = 0
    attempts: int = 0
    reason: str | None = None


def snapshot(c: sa.Connection) -> None:
    """See one state of the database until the end of the transaction, of which this is the first statement."""
    if c.dialect.name != "sqlite":  # the server's own level, or the engine's, may be READ COMMITTED
        c.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    else:
        c.exec_driver_sql("BEGIN")


# -- out


def lines(c: sa.Connection, ids: Sequence[UUID]) -> list[Line]:
    """The lines of these contexts, in the order of their ids; none for one that is not there."""
    if not ids:
        return []
    heads = c.execute(sa.select(*HEAD, contexts.c.payload).where(contexts.c.id.in_(ids)).order_by(contexts.c.id)).all()
    there = [row.id for row in heads]
    parts = [_rows(c, table, columns, there) for table, columns in _PARTS]
    return [_line(row, *(part.get(row.id, []) for part in parts)) for row in heads]


_PARTS: list[tuple[sa.Table, list[sa.Column[Any]]]] = [(messages, MESSAGE), (in_flight, FLIGHT), (usage, USAGE)]


def _rows(c: sa.Connection, table: sa.Table, columns: list[Any], ids: Sequence[UUID]) -> dict[UUID, list[Any]]:
    if not ids:
        return {}
    key = table.c.context_id
    query = sa.select(key, *columns).where(key.in_(ids)).order_by(key, list(table.primary_key.columns)[1])
    found = c.execute(query).all()
    return {context_id: list(rows) for context_id, rows in groupby(found, attrgetter("context_id"))}


def _line(head: Any, of_messages: list[Any], flights: list[Any], attempts: list[Any]) -> Line:
    counts = len(of_messages), len(attempts)
    try:
        text, digest = _sealed(_text(head._mapping, of_messages, flights, attempts))
    except PayloadError as error:
        return Line(head.id, None, None, *counts, str(error))
    try:
        _check_places(head.next_position, head.revision, [(r.position, r.retired_at_revision) for r in of_messages])
    except PayloadError as error:
        return Line(head.id, None, digest, *counts, str(error))
    return Line(head.id, text, digest, *counts)


def _text(head: Mapping[str, Any], of_messages: list[Any], flights: list[Any], attempts: list[Any]) -> str:
    return (
        f'{{"ctxstore_export":{FORMAT},"context":{_object(HEAD, head)},"payload":{_same(head["payload"])},'
        f'"messages":{_objects(MESSAGE, of_messages)},"in_flight":{_objects(FLIGHT, flights)},'
        f'"usage":{_objects(USAGE, attempts)}'
    )


def _check_places(end: int, revision: int, rows: Sequence[tuple[int, int | None]]) -> None:
    """Refuse messages that do not stand one after the other, or that left at a revision which never was."""
    positions = [position for position, _ in rows]
    if end != len(rows) or positions != list(range(end)):
        raise PayloadError(f"messages: their positions are not 0 to {end - 1}, each once and in order")
    for position, retired in rows:
        if retired is not None and not 1 <= retired <= revision:
            raise PayloadError(f"messages[{position}]: left at revision {retired}, the context is at {revision}")


def _sealed(text: str) -> tuple[str, str]:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{text},"hash":"{digest}"}}', digest


def _objects(columns: Sequence[sa.Column[Any]], rows: Iterable[Any]) -> str:
    return f"[{','.join(_object(columns, getattr(row, '_mapping', row)) for row in rows)}]"


def _object(columns: Sequence[sa.Column[Any]], values: Mapping[str, Any]) -> str:
    pieces = [f'"{c.name}":{_value(c, values[c.name])}' for c in columns if values[c.name] is not None]
    return f"{{{','.join(pieces)}}}"


def _value(column: sa.Column[Any], value: Any) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(column.type, JsonText):
        return _same(value)
    return jsontext.dumps(value.isoformat() if isinstance(value, dt.datetime) else value)


def _same(text: str) -> str:
    """A JSON text in the one form that its value has."""
    return jsontext.dumps(jsontext.loads(text))


def deleted(c: sa.Connection, after: UUID | None, last: UUID | None, limit: int, owner: str | None) -> list[UUID]:
    """The ids of contexts that are gone and in the ledger, in their order."""
    key = usage.c.context_id
    query = sa.select(key).where(~sa.exists().where(contexts.c.id == key)).group_by(key).order_by(key).limit(limit)
    if after is not None:
        query = query.where(key > after)
    if last is not None:
        query = query.where(key < last)
    if owner is not None:
        query = query.where(usage.c.owner == owner)
    return list(c.scalars(query))


def ledger_lines(c: sa.Connection, ids: Sequence[UUID]) -> list[Line]:
    """The lines of the ledgers of these contexts, which are gone."""
    out = []
    for context_id, rows in _rows(c, usage, USAGE, ids).items():
        try:
            text = f'{{"ctxstore_export":{FORMAT},"ledger":"{context_id}","usage":{_objects(USAGE, rows)}'
            out.append(Line(context_id, *_sealed(text), attempts=len(rows)))
        except PayloadError as error:
            out.append(Line(context_id, None, None, attempts=len(rows), reason=str(error)))
    return out


def ledgers(c: sa.Connection, ids: Sequence[UUID]) -> dict[UUID, dict[UUID, dict[str, Any]]]:
    """The attempts in the ledger of each context by their ids, as ``Parcel.usage`` has them."""
    texts = [column.name for column in USAGE if isinstance(column.type, JsonText)]
    out: dict[UUID, dict[UUID, dict[str, Any]]] = {}
    for context_id, rows in _rows(c, usage, USAGE, ids).items():
        out[context_id] = {row.id: dict(row._mapping) for row in rows}
        for row in out[context_id].values():
            with suppress(PayloadError):  # what is no JSON is equal to nothing that comes
                row |= {name: _same(row[name]) for name in texts if row[name] is not None}
    return out


def end_line(of_contexts: int, of_ledgers: int) -> str:
    """The line that says that an export is whole."""
    return f'{{"ctxstore_export":{FORMAT},"end":{{"contexts":{of_contexts},"ledgers":{of_ledgers}}}}}'


# -- in


@dataclass(slots=True)
class Parcel:
    """The rows of one line. ``head`` is None for the ledger of a context that was deleted."""

    id: UUID
    hash: str
    head: dict[str, Any] | None
    messages: list[dict[str, Any]] = field(default_factory=list)
    in_flight: list[dict[str, Any]] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)


def parcel(content: Mapping[str, Any], line: bytes) -> Parcel | tuple[int, int]:
    """What ``content``, which ``line`` was parsed to, brings; the numbers of contexts and ledgers when it ends an
    export.

    Raises:
        PayloadError: it is no line of an export, was changed, or holds what cannot be read.
    """
    if content.get("ctxstore_export") != FORMAT or type(content["ctxstore_export"]) is bool:
        raise PayloadError(f"it is in the form {_shown(content.get('ctxstore_export'))}; only {FORMAT} can be read")
    if "end" in content:
        end = content["end"] if isinstance(content["end"], dict) else {}
        of_contexts, of_ledgers = end.get("contexts"), end.get("ledgers")
        if type(of_contexts) is int and type(of_ledgers) is int:
            return of_contexts, of_ledgers
        raise PayloadError("end: must say how many contexts and ledgers there were")
    sealed = _HASH.search(line)
    if sealed is None or hashlib.sha256(line[: sealed.start()].lstrip()).hexdigest() != sealed[1].decode():
        raise PayloadError("its hash does not fit: it was changed or damaged since it was exported")
    digest = sealed[1].decode()
    if "ledger" in content:
        context_id = _uuid(content["ledger"], "ledger")
        return Parcel(context_id, digest, None, usage=_read(USAGE, content, "usage", context_id))
    try:
        return _context(content, digest)
    except CtxstoreError as error:
        raise PayloadError(f"context {_name(content)}: {error}") from error


def _name(content: Mapping[str, Any]) -> str:
    head = content.get("context")
    return _shown(head.get("id") if isinstance(head, dict) else None)


def _shown(value: Any) -> str:
    return kind(value) if isinstance(value, dict | list) else f"{value!r:.40}"


def _context(content: Mapping[str, Any], digest: str) -> Parcel:
    head = _row(HEAD, content.get("context"), "context")
    context_id = head["id"] = clock.parse_id(head["id"])
    payload = jsontext.check_loaded(content.get("payload"), "payload", _DOCUMENT)
    head |= {"payload": jsontext.dumps(payload), "last_save": secrets.token_hex(TOKEN_LENGTH // 2), "lease_epoch": 0}
    of_head = codec.load_head(head["payload"], head["schema_version"], context_id=context_id)
    rows = _read(MESSAGE, content, "messages", context_id)
    _check_places(head["next_position"], head["revision"], [(r["position"], r["retired_at_revision"]) for r in rows])
    found = codec.load_messages(
        [row["payload"] for row in rows], [row["schema_version"] for row in rows], context_id=context_id
    )
    live: list[Message] = []
    changed = False
    for i, (row, message) in enumerate(zip(rows, found, strict=True)):
        check_numbers(message, f"messages[{i}]")
        if row["id"] != message.id:
            raise PayloadError(f"messages[{i}]: the id is not its payload's")
        rows[i] = {**row, **message_row(context_id, i, message, row["payload"], row["schema_version"])}
        changed |= rows[i]["created_at"] != row["created_at"]
        if row["retired_at_revision"] is None:
            live.append(message)
    flights = _read(FLIGHT, content, "in_flight", context_id)
    for i, row in enumerate(flights):
        try:
            flight_messages(row["payload"], context_id)
        except PayloadError as error:
            raise PayloadError(f"in_flight[{i}].payload: {error}") from error
    attempts = _read(USAGE, content, "usage", context_id)
    if _derive(head, payload, Document(of_head, live)) or changed:
        digest = _sealed(_text(head, rows, flights, attempts))[1]
    return Parcel(context_id, digest, head, rows, flights, attempts)


def _derive(head: dict[str, Any], payload: dict[str, Any], document: Document) -> bool:
    """Put into ``head`` what the messages say where it says otherwise; whether it did."""
    state = State(document.head)
    state.take(document)
    columns, keys = derived(state)
    if any(m.usage is not None and m.cost_pico_usd is None for m in state.messages if m.role == "assistant"):
        for of in (columns, keys):  # whoever saved such a reply priced it, or not
            for name in ("cost_pico_usd", "unpriced", "cost"):
                of.pop(name, None)
    wrong = {n: _column(contexts.c[n], v, f"context.{n}") for n, v in columns.items() if head[n] != v}
    told = {k: v for k, v in keys.items() if k in payload and not _as_said(payload[k], v)}
    if document.head.revision != head["revision"]:
        told["revision"] = head["revision"]
    if told:
        wrong["payload"] = jsontext.dumps({**payload, **told})
    head |= wrong
    return bool(wrong)


def _as_said(said: Any, value: Any) -> bool:
    if isinstance(said, str) and isinstance(value, str):
        with suppress(ArithmeticError):
            return Decimal(said) == Decimal(value)
    return bool(said == value)


def _read(columns: Sequence[sa.Column[Any]], content: Mapping[str, Any], key: str, id: UUID) -> list[dict[str, Any]]:
    found = content.get(key)
    if not isinstance(found, list):
        raise PayloadError(f"{key}: must be a list of rows")
    return [{"context_id": id, **_row(columns, item, f"{key}[{i}]")} for i, item in enumerate(found)]


def _row(columns: Sequence[sa.Column[Any]], item: Any, path: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise PayloadError(f"{path}: must be an object")
    unknown = item.keys() - {c.name for c in columns}
    if unknown:
        raise PayloadError(f"{path}.{min(unknown)}: there is no such column here; a newer ctxstore wrote this")
    return {c.name: _column(c, item.get(c.name), f"{path}.{c.name}") for c in columns}


def _column(column: sa.Column[Any], value: Any, path: str) -> Any:
    held = column.type
    if value is None:
        if not column.nullable:
            raise PayloadError(f"{path}: is missing")
        return None
    if column.name == "owner":
        check_owner(value)
    if isinstance(held, JsonText):
        return jsontext.dumps(jsontext.check_loaded(value, path, _DEPTHS.get(column.table.name, 1)))
    if isinstance(held, Uuid):
        return _uuid(value, path)
    if isinstance(held, UtcDateTime):
        return _time(value, path)
    if isinstance(held, sa.Boolean):
        if type(value) is bool:
            return value
    elif isinstance(held, sa.Integer):
        bits = 63 if isinstance(held, sa.BigInteger) else 31
        if type(value) is int and -(2**bits) <= value < 2**bits:
            return value
    elif isinstance(value, str) and value == plain(value) and (held.length is None or len(value) <= held.length):  # type: ignore[attr-defined]
        return value
    raise PayloadError(f"{path}: {_shown(value)} is not what this column holds")


def _uuid(value: Any, path: str) -> UUID:
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError) as error:
        raise PayloadError(f"{path}: {_shown(value)} is no UUID") from error


def _time(value: Any, path: str) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise PayloadError(f"{path}: {_shown(value)} is no time") from error
    if time.tzinfo is None:
        raise PayloadError(f"{path}: {_shown(value)} has no zone")
    check_time(time, path)
    return time.astimezone(dt.UTC)
