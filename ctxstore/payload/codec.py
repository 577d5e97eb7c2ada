"""Payloads in and out: ``load`` and ``dump`` whole ones, and the same for the head and the messages of a store's rows.

Reading checks the version before anything else, moves older versions up, and validates the whole before it returns any
of it; what it is given is never changed. Writing checks every value, so that nothing is written that cannot be read
back, and refuses with the path. Projections are written and never read.
"""

from __future__ import annotations

import datetime as dt
import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from .. import clock, jsontext
from ..errors import ConfigurationError, PayloadError
from ..messages import MESSAGES, Message
from ..usage import TokenUsage
from . import upcasts
from .checks import INT64, check_counts, check_numbers, check_time, check_version, kind, refusal, version_of
from .ids import EPOCH, message_id_of, message_id_texts, stable_id
from .params import check_params
from .schema import MESSAGE_DEPTH, PROJECTIONS, Document, Head

__all__ = [
    "check_params",
    "check_version",
    "collector_held",
    "context_id_of",
    "dump",
    "dump_head",
    "dump_message",
    "dump_raw",
    "head_of",
    "identify",
    "load",
    "load_head",
    "load_messages",
    "load_parsed",
    "load_row",
    "message_id_of",
    "message_of",
    "parse",
    "parse_row",
    "stable_id",
    "upcast",
    "upcast_row",
    "validated",
    "with_ids",
]

_DOCUMENT, _MESSAGE = MESSAGE_DEPTH - 2, MESSAGE_DEPTH


# -- ids


def context_id_of(document: Mapping[str, Any] | str | bytes) -> UUID:
    """An id for a payload that has none, the same every time: from the SHA-256 of its content.

    Spaces and the order of keys do not matter. Its time is that of the payload's earliest message, the epoch when none
    says.

    Raises:
        PayloadError: it is no payload, as ``load`` says.
    """
    return _id_of(parse(document))


def _id_of(content: Mapping[str, Any], place: str | None = None) -> UUID:
    text = place if place is not None else json.dumps(content, sort_keys=True, separators=(",", ":"))
    return stable_id(min(_times_of(_messages_of(content)), default=EPOCH), text)


def _times_of(messages: Iterable[Mapping[str, Any]]) -> list[dt.datetime]:
    known = (_time_of(m) for m in messages if m.get("created_at") is not None or m.get("id") is not None)
    return [time for time in known if time is not None]


def _time_of(message: Mapping[str, Any]) -> dt.datetime | None:
    written = message.get("created_at")
    if isinstance(written, str):
        try:
            time = dt.datetime.fromisoformat(written)
        except ValueError:
            return None
        return time if time.tzinfo else time.replace(tzinfo=dt.UTC)
    return clock.time_of(clock.parse_id(message["id"])) if clock.is_uuid7(message.get("id")) else None


# -- whole payloads


def parse(data: Mapping[str, Any] | str | bytes) -> dict[str, Any]:
    """``data`` as a dict of its own, in its own version, which is checked; nothing else of its form is.

    Raises:
        SchemaVersionError: the version is missing, newer or no version.
        PayloadError: it is no JSON object, or holds what JSON cannot.
    """
    written = isinstance(data, str | bytes)
    found = jsontext.loads(data) if isinstance(data, str | bytes) else data
    if not isinstance(found, Mapping):
        raise PayloadError(f"a saved context is a JSON object, this is {kind(found)}")
    version_of(found)
    check = jsontext.check_loaded if written else jsontext.check
    content: dict[str, Any] = check(dict(found), "payload", _DOCUMENT)
    return content


def load(
    data: Mapping[str, Any] | str | bytes, *, context_id: UUID | None = None, place: str | None = None
) -> Document:
    """A whole payload of any version, as values of the current one.

    ``context_id`` wins over the payload's own id; with neither, the id is made from ``place``, which names where the
    payload stands and nothing else does, and without one it is ``context_id_of(data)``. A payload id that
    is no UUIDv7 is kept in the metadata as ``payload_id``. Messages without an id get ``message_id_of`` theirs.

    Raises:
        SchemaVersionError: the version is missing, newer or no version.
        PayloadError: it is no payload, or a part of it is not what it must be; the path says which.
    """
    with collector_held():
        return load_parsed(parse(data), context_id=context_id, place=place)


def load_parsed(content: dict[str, Any], *, context_id: UUID | None = None, place: str | None = None) -> Document:
    """``load`` of what ``parse`` gave, in the steps that many documents take one after the other."""
    raw = upcast(content)
    if context_id is None:
        context_id = identify(content, place)
    head = head_of(raw, context_id)
    return Document(head, validated(with_ids(raw["messages"], context_id)))


def upcast(content: dict[str, Any]) -> dict[str, Any]:
    """What ``parse`` gave, in the current version: plain dicts still, of which only ``messages`` was looked at."""
    _messages_of(content)
    raw = upcasts.upcast_document(content, content["schema_version"])
    raw["messages"] = _messages_of(raw)
    return raw


def identify(content: Mapping[str, Any], place: str | None = None) -> UUID:
    """The id of what ``parse`` gave, as ``load`` says."""
    own = content.get("id")
    return clock.parse_id(own) if own is not None and clock.is_uuid7(own) else _id_of(content, place)


def dump(document: Document, projections: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``document`` as a payload of the current version, sharing nothing with it.

    ``projections`` are the values of ``schema.PROJECTIONS``, in the values' own types or in JSON's.

    Raises:
        UnsupportedValueError: a value has no form in JSON; ``.path`` says where.
    """
    check = jsontext.check
    with collector_held():
        messages = [check(m.to_payload(), f"messages[{i}]", _MESSAGE) for i, m in enumerate(document.messages)]
    return dump_raw(document.head, messages, projections)


def dump_raw(
    head: Head, messages: list[dict[str, Any]], projections: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """``dump`` with messages that are JSON's own values already, as ``upcast`` gives them."""
    out = _head_payload(head, projections)
    out["messages"] = messages
    return _with_extras(out, head)


def _messages_of(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = content.get("messages")
    if messages is None:
        return []
    if not isinstance(messages, list):
        raise PayloadError(f"messages: must be a list, this is {kind(messages)}")
    for i, message in enumerate(messages):
        if type(message) is not dict:
            raise PayloadError(f"messages[{i}]: must be an object, this is {kind(message)}")
    return messages


def with_ids(messages: list[dict[str, Any]], context_id: UUID) -> list[dict[str, Any]]:
    """``messages`` in which those without an id have ``message_id_of`` theirs."""
    bare = [i for i, m in enumerate(messages) if m.get("id") is None]
    if not bare:
        return messages
    out = list(messages)
    for i, text in zip(bare, message_id_texts(context_id, bare), strict=True):
        out[i] = {**messages[i], "id": text}
    return out


# -- the head


class _HeadForm(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: UUID
    thread_id: UUID
    provider: str | None = None
    mode: str | None = None
    model: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    tools: tuple[str, ...] = ()
    metadata: dict[str, Any] = Field(default_factory=dict)
    summary: str | None = None
    compacted: Annotated[bool, Field(strict=True)] = False
    started_at: AwareDatetime
    updated_at: AwareDatetime
    revision: Annotated[int, Field(strict=True, ge=0, lt=INT64)] = 0
    carried_usage: TokenUsage = Field(default_factory=TokenUsage.zero)
    carried_cost: Annotated[int, Field(strict=True, ge=0, lt=INT64)] = 0
    carried_unpriced: Annotated[int, Field(strict=True, ge=0, lt=INT64)] = 0


_HEAD_KEYS = frozenset(_HeadForm.model_fields)
_IGNORED = frozenset({*PROJECTIONS, "schema_version", "messages"})


def head_of(raw: Mapping[str, Any], context_id: UUID) -> Head:
    """The head of a payload of the current version. Raises as ``load``."""
    data = {k: v for k, v in raw.items() if k not in _IGNORED and (v is not None or k not in _HEAD_KEYS)}
    own, data["id"] = data.get("id"), context_id
    data.setdefault("thread_id", context_id)
    if not data.get("started_at") or not data.get("updated_at"):
        times = _times_of(raw.get("messages") or ()) or [clock.time_of(context_id)]
        data["started_at"] = data.get("started_at") or min(times)
        data["updated_at"] = data.get("updated_at") or max(times)
    try:
        form = _HeadForm.model_validate(data)
    except ValidationError as error:
        raise refusal(error, data, "") from error
    try:
        check_params(form.params)
    except ConfigurationError as error:
        raise PayloadError(f"the payload is refused: {error}") from error
    check_counts(form.carried_usage, "carried_usage")
    check_time(form.started_at, "started_at")
    check_time(form.updated_at, "updated_at")
    fields = dict(form.__dict__)
    if own and not clock.is_uuid7(own):
        fields["metadata"].setdefault("payload_id", own)
    return Head(**fields, extras=form.__pydantic_extra__ or {})


def load_head(text: str | bytes, version: int, *, context_id: UUID | None = None) -> Head:
    """The head of a store's row, from its text and the version in its column.

    Raises:
        SchemaVersionError: the version cannot be read.
        PayloadError: the text is no head, or its own version is another than the column's.
    """
    check_version(version)
    raw = parse(text)
    if raw["schema_version"] != version:
        raise PayloadError(f"the row says schema_version {version}, its payload {raw['schema_version']}")
    raw = upcasts.upcast_head(raw, version)
    if context_id is None:
        if not clock.is_uuid7(raw.get("id")):
            raise PayloadError(f"id: must be a UUIDv7, this is {raw.get('id')!r}")
        context_id = clock.parse_id(raw["id"])
    return head_of(raw, context_id)


def dump_head(head: Head, projections: Mapping[str, Any] | None = None, *, revision: int | None = None) -> str:
    """The text of the head: a payload of the current version without its messages.

    ``revision`` is the one that is written, the head's own when not given. Raises as ``dump``.
    """
    out = _with_extras(_head_payload(head, projections), head)
    return jsontext.dumps(out if revision is None else {**out, "revision": revision})


def _head_payload(head: Head, projections: Mapping[str, Any] | None) -> dict[str, Any]:
    identity, started, updated = str(head.id), head.started_at, head.updated_at
    started_at = started.isoformat()
    out: dict[str, Any] = {
        "schema_version": upcasts.current(),
        "id": identity,
        "thread_id": identity if head.thread_id is head.id else str(head.thread_id),
        "provider": head.provider,
        "mode": head.mode,
        "model": head.model,
        "params": jsontext.check(head.params, "params", _DOCUMENT + 1) if head.params else {},
        "tools": list(head.tools),
        "metadata": jsontext.check(head.metadata, "metadata", _DOCUMENT + 1) if head.metadata else {},
        "summary": head.summary and jsontext.check(head.summary, "summary"),
        "compacted": head.compacted,
        "started_at": started_at,
        "updated_at": started_at if updated is started else updated.isoformat(),
        "revision": head.revision,
        "carried_usage": head.carried_usage.to_payload(),
        "carried_cost": head.carried_cost,
        "carried_unpriced": head.carried_unpriced,
    }
    for key in PROJECTIONS:
        value = projections.get(key) if projections else None
        if isinstance(value, TokenUsage):
            value = value.to_payload()
        elif isinstance(value, Decimal):
            value = str(value)
        elif value is not None:
            value = jsontext.check(value, key, _DOCUMENT + 1)
        out[key] = value
    return out


def _with_extras(out: dict[str, Any], head: Head) -> dict[str, Any]:
    for key, value in head.extras.items():
        out.setdefault(key, jsontext.check(value, key, _DOCUMENT + 1))
    return out


# -- messages as rows


def dump_message(message: Message, path: str = "message") -> str:
    """The text of one message in the current version.

    Raises:
        UnsupportedValueError: a value has no form in JSON; ``.path`` says where, beginning with ``path``.
    """
    return jsontext.dumps(jsontext.check(message.to_payload(), path, _MESSAGE))


def load_messages(
    texts: Sequence[str],
    versions: Sequence[int],
    *,
    positions: Sequence[int] | None = None,
    context_id: UUID | None = None,
    source: upcasts.Source | None = None,
) -> list[Message]:
    """Messages from the texts of their rows and the version in the column of each, in their order.

    ``positions`` name the rows in errors and count from 0 when not given. ``context_id`` and ``source`` are what older
    versions need to know of their conversation.

    Raises:
        SchemaVersionError: a version cannot be read.
        PayloadError: a row is no message; the message names its position.
    """
    now = upcasts.current()
    if versions.count(now) == len(texts) == len(versions):
        found = _all_at_once(texts)
        if found is not None and len(found) == len(texts) and all(map(_has_common_time, found)):
            return found
    return [
        load_row(text, version, positions[i] if positions else i, context_id, source)
        for i, (text, version) in enumerate(zip(texts, versions, strict=True))
    ]


def _all_at_once(texts: Sequence[str]) -> list[Message] | None:
    """Every row in one call, None when one of them needs a closer look."""
    joined = f"[{','.join(texts)}]"
    with collector_held():
        try:
            return MESSAGES.validate_json(joined)
        except (ValidationError, UnicodeEncodeError):
            pass
        try:  # lone surrogates, which only the slow reader takes
            return MESSAGES.validate_python(jsontext.loads(joined))
        except (ValidationError, PayloadError):
            return None


def _has_common_time(message: Message) -> bool:
    """Whether the time certainly has a form in UTC; the slow reader looks at the few that may have none."""
    return message.created_at is None or 1 < message.created_at.year < 9999


@contextmanager
def collector_held() -> Iterator[None]:
    """Hold the garbage collector: it would walk tens of thousands of new objects again and again, none of which can be
    garbage yet, and double the time."""
    held = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if held:
            gc.enable()


def load_row(
    text: str, version: int, position: int, context_id: UUID | None = None, source: upcasts.Source | None = None
) -> Message:
    """One message from its row. Raises as ``load_messages``."""
    raw = upcast_row(parse_row(text, version, position), version, position, context_id, source)
    return message_of(raw, position)


def parse_row(text: str, version: int, position: int) -> dict[str, Any]:
    """The message in a row as a dict, in its own version, which is checked; nothing else of its form is."""
    path = _path_of(position)
    check_version(version)
    try:
        found = jsontext.loads(text)
    except PayloadError as error:
        raise PayloadError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise PayloadError(f"{path}: must be an object, this is {kind(found)}")
    jsontext.check_loaded(found, path, _MESSAGE)
    return found


def upcast_row(
    content: dict[str, Any],
    version: int,
    position: int,
    context_id: UUID | None = None,
    source: upcasts.Source | None = None,
) -> dict[str, Any]:
    """What ``parse_row`` gave, in the current version: a plain dict still."""
    try:
        raw = upcasts.upcast_message(content, version, source or _NOBODY)
    except PayloadError as error:
        raise PayloadError(f"{_path_of(position)}: {error}") from error
    if raw.get("id") is None and context_id is not None:
        raw["id"] = str(message_id_of(context_id, position))
    return raw


def message_of(raw: dict[str, Any], position: int) -> Message:
    """What ``upcast_row`` gave as a value."""
    try:
        message = Message.model_validate(raw)
    except ValidationError as error:
        raise refusal(error, raw, f"{_path_of(position)}: ") from error
    check_numbers(message, _path_of(position))
    return message


_NOBODY = upcasts.Source()


def _path_of(position: int) -> str:
    return f"the message at position {position}"


def validated(raw: list[dict[str, Any]]) -> list[Message]:
    """Messages of the current version as values. Raises ``PayloadError`` with the path."""
    try:
        messages = MESSAGES.validate_python(raw)
    except ValidationError as error:
        raise refusal(error, raw, "messages") from error
    for i, m in enumerate(messages):
        if m.usage is not None or m.created_at is not None or m.cost_pico_usd is not None:
            check_numbers(m, f"messages[{i}]")
    return messages
