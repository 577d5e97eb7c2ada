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

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .. import clock, jsontext
from ..errors import ConfigurationError, PayloadError, SchemaVersionError
from ..messages import MESSAGES, Message
from ..usage import TokenUsage
from . import upcasts
from .ids import EPOCH, message_id_of, stable_id
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
    "load",
    "load_head",
    "load_messages",
    "load_parsed",
    "load_row",
    "load_with_messages",
    "message_id_of",
    "parse",
    "stable_id",
]

_DOCUMENT, _MESSAGE = MESSAGE_DEPTH - 2, MESSAGE_DEPTH

_INT64 = 2**63


# -- versions


def check_version(version: object) -> int:
    """``version`` when this program can read it.

    Raises:
        SchemaVersionError: it is newer, below 1, or no integer at all (``True``, ``1.0``, ``"3"`` and None are none).
    """
    supported = range(1, upcasts.current() + 1)
    if type(version) is int and version in supported:
        return version
    newer = type(version) is int and version > supported[-1]
    raise SchemaVersionError(
        f"the schema_version {version!r} cannot be read, only {_these(supported)}"
        + ("; it was written by a newer ctxstore" if newer else ""),
        found=version,
        supported=supported,
    )


def _version_of(content: Mapping[str, Any]) -> int:
    if "schema_version" in content:
        return check_version(content["schema_version"])
    supported = range(1, upcasts.current() + 1)
    raise SchemaVersionError(
        f"there is no schema_version, so this is no saved context, or a part of one; {_these(supported)} can be read",
        supported=supported,
    )


def _these(versions: Iterable[int]) -> str:
    return f"versions {', '.join(map(str, versions))}"


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
    return [time for message in messages if (time := _time_of(message)) is not None]


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
        raise PayloadError(f"a saved context is a JSON object, this is {_kind(found)}")
    _version_of(found)
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
    """``load`` of what ``parse`` gave."""
    return load_with_messages(content, context_id=context_id, place=place)[0]


def load_with_messages(
    content: dict[str, Any], *, context_id: UUID | None = None, place: str | None = None
) -> tuple[Document, list[dict[str, Any]]]:
    """The same, and the messages as they stand in a payload of the current version."""
    _messages_of(content)
    raw = upcasts.upcast_document(content, content["schema_version"])
    messages = _messages_of(raw)
    if context_id is None:
        context_id = clock.parse_id(raw["id"]) if clock.is_uuid7(raw.get("id")) else _id_of(content, place)
    head = _head(raw, context_id, messages)
    messages = _with_ids(messages, context_id)
    return Document(head, _validated(messages)), messages


def dump(document: Document, projections: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``document`` as a payload of the current version, sharing nothing with it.

    ``projections`` are the values of ``schema.PROJECTIONS``, in the values' own types or in JSON's.

    Raises:
        UnsupportedValueError: a value has no form in JSON; ``.path`` says where.
    """
    out = _head_payload(document.head, projections)
    check = jsontext.check
    with collector_held():
        out["messages"] = [check(m.to_payload(), f"messages[{i}]", _MESSAGE) for i, m in enumerate(document.messages)]
    return _with_extras(out, document.head)


def _messages_of(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = content.get("messages")
    if messages is None:
        return []
    if not isinstance(messages, list):
        raise PayloadError(f"messages: must be a list, this is {_kind(messages)}")
    for i, message in enumerate(messages):
        if type(message) is not dict:
            raise PayloadError(f"messages[{i}]: must be an object, this is {_kind(message)}")
    return messages


def _with_ids(messages: list[dict[str, Any]], context_id: UUID) -> list[dict[str, Any]]:
    return [
        m if m.get("id") is not None else {**m, "id": str(message_id_of(context_id, i))} for i, m in enumerate(messages)
    ]


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
    revision: Annotated[int, Field(strict=True, ge=0, lt=_INT64)] = 0
    carried_usage: TokenUsage = Field(default_factory=TokenUsage.zero)
    carried_cost: Annotated[int, Field(strict=True, ge=0, lt=_INT64)] = 0
    carried_unpriced: Annotated[int, Field(strict=True, ge=0, lt=_INT64)] = 0

    @model_validator(mode="before")
    @classmethod
    def _absent(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in data.items() if v is not None or k not in _HEAD_KEYS}

    @field_validator("params")
    @classmethod
    def _harmless(cls, params: dict[str, Any]) -> dict[str, Any]:
        try:
            check_params(params)
        except ConfigurationError as error:
            raise PayloadError(f"the payload is refused: {error}") from error
        return params


_HEAD_KEYS = tuple(_HeadForm.model_fields)
_IGNORED = frozenset({*PROJECTIONS, "schema_version", "messages"})


def _head(raw: Mapping[str, Any], context_id: UUID, messages: Sequence[Mapping[str, Any]] = ()) -> Head:
    data = {k: v for k, v in raw.items() if k not in _IGNORED}
    own, data["id"] = data.get("id"), context_id
    if data.get("thread_id") is None:
        data["thread_id"] = context_id
    if data.get("started_at") is None or data.get("updated_at") is None:
        times = _times_of(messages) or [clock.time_of(context_id)]
        data["started_at"] = data.get("started_at") or min(times)
        data["updated_at"] = data.get("updated_at") or max(times)
    try:
        form = _HeadForm.model_validate(data)
    except ValidationError as error:
        raise _refusal(error, data, "") from error
    _check_counts(form.carried_usage, "carried_usage")
    _check_time(form.started_at, "started_at")
    _check_time(form.updated_at, "updated_at")
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
    return _head(raw, context_id)


def dump_head(head: Head, projections: Mapping[str, Any] | None = None, *, revision: int | None = None) -> str:
    """The text of the head: a payload of the current version without its messages.

    ``revision`` is the one that is written, the head's own when not given. Raises as ``dump``.
    """
    out = _with_extras(_head_payload(head, projections), head)
    return jsontext.dumps(out if revision is None else {**out, "revision": revision})


def _head_payload(head: Head, projections: Mapping[str, Any] | None) -> dict[str, Any]:
    out: dict[str, Any] = {
        "schema_version": upcasts.current(),
        "id": str(head.id),
        "thread_id": str(head.thread_id),
        "provider": head.provider,
        "mode": head.mode,
        "model": head.model,
        "params": jsontext.check(head.params, "params", _DOCUMENT + 1),
        "tools": list(head.tools),
        "metadata": jsontext.check(head.metadata, "metadata", _DOCUMENT + 1),
        "summary": jsontext.check(head.summary, "summary"),
        "compacted": head.compacted,
        "started_at": head.started_at.isoformat(),
        "updated_at": head.updated_at.isoformat(),
        "revision": head.revision,
        "carried_usage": head.carried_usage.to_payload(),
        "carried_cost": head.carried_cost,
        "carried_unpriced": head.carried_unpriced,
    }
    for key in PROJECTIONS:
        value = (projections or {}).get(key)
        if isinstance(value, TokenUsage):
            value = value.to_payload()
        out[key] = str(value) if isinstance(value, Decimal) else jsontext.check(value, key, _DOCUMENT + 1)
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
        if found is not None and len(found) == len(texts):
            return found
    return [
        load_row(text, version, positions[i] if positions else i, context_id, source)[0]
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
) -> tuple[Message, dict[str, Any], dict[str, Any]]:
    """One message from its row, as the row says it and as the current version does. Raises as ``load_messages``."""
    path = f"the message at position {position}"
    check_version(version)
    try:
        old = jsontext.loads(text)
    except PayloadError as error:
        raise PayloadError(f"{path}: {error}") from error
    if not isinstance(old, dict):
        raise PayloadError(f"{path}: must be an object, this is {_kind(old)}")
    jsontext.check_loaded(old, path, _MESSAGE)
    try:
        raw = upcasts.upcast_message(old, version, source or upcasts.Source())
    except PayloadError as error:
        raise PayloadError(f"{path}: {error}") from error
    if raw.get("id") is None and context_id is not None:
        raw["id"] = str(message_id_of(context_id, position))
    try:
        message = Message.model_validate(raw)
    except ValidationError as error:
        raise _refusal(error, raw, f"{path}: ") from error
    _check_numbers(message, path)
    return message, old, raw


def _validated(raw: list[dict[str, Any]]) -> list[Message]:
    try:
        messages = MESSAGES.validate_python(raw)
    except ValidationError as error:
        raise _refusal(error, raw, "messages") from error
    for i, message in enumerate(messages):
        _check_numbers(message, f"messages[{i}]")
    return messages


def _check_numbers(message: Message, path: str) -> None:
    """Refuse what has no place in the columns beside the payload."""
    if message.usage is not None:
        _check_counts(message.usage, f"{path}.usage")
    if message.cost_pico_usd is not None and not 0 <= message.cost_pico_usd < _INT64:
        raise PayloadError(f"{path}.cost_pico_usd: is negative or too large")
    _check_time(message.created_at, f"{path}.created_at")


def _check_counts(usage: TokenUsage, path: str) -> None:
    counts = [n for n in usage.__dict__.values() if n]
    if counts and (min(counts) < 0 or max(counts) >= _INT64):
        raise PayloadError(f"{path}: a count is negative or too large")


def _check_time(time: dt.datetime | None, path: str) -> None:
    try:
        if time is not None and not 1 < time.year < 9999:
            time.astimezone(dt.UTC)
    except OverflowError as error:
        raise PayloadError(f"{path}: has no form in UTC") from error


def _refusal(error: ValidationError, data: Any, path: str) -> PayloadError:
    """What pydantic found, by the path into ``data`` rather than through the branches of its unions."""
    best, said = "", ""
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        at, here, tag = "", data, True
        last = len(found["loc"]) - 1
        for depth, item in enumerate(found["loc"]):
            if tag and isinstance(here, dict) and here.get("type") == item:
                tag = False  # the branch of a union that is told by the part's type
                continue
            if _holds(here, item):
                here, tag = here[item], True
            elif found["type"] != "missing" or depth != last:
                continue  # the name of a branch
            at += f"[{item}]" if isinstance(item, int) else f".{item}"
        if not said or len(at) > len(best):
            best, said = at, found["msg"]
    if not path or path.endswith(" "):
        best = best.removeprefix(".")
    return PayloadError(f"{path}{best}: {said}")


def _holds(here: Any, item: int | str) -> bool:
    if isinstance(here, dict):
        return item in here
    return isinstance(here, list) and isinstance(item, int) and item < len(here)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null", bool: "a boolean"}
    return names.get(type(value), f"a {type(value).__name__}")
