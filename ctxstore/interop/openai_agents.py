"""Sessions of openai-agents: ``SQLiteSession``, ``SQLAlchemySession``, and the main branch of an
``AdvancedSQLiteSession``.

A session is a list of items in the form of OpenAI's Responses API. Items of one reply (reasoning, text, calls) become
one message, outputs of calls become tool results. What has no place here (item ids, annotations, encrypted reasoning)
is kept, item by item, in the message's ``metadata``; items that nothing here knows, and outputs of calls that are not
in the session, stay in the history as parts of their own type.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from pydantic import ValidationError

from .. import jsontext
from ..errors import PayloadError
from ..payload import checks, codec
from ..payload.schema import Document, Head
from ..store import Store
from ..store.transfer import Import
from ..usage import TokenUsage, UsageEntry
from .source import Brought, Found, Source, bring, open_source, raw, reflected, shown, text_of, tried

__all__ = ["aimport_sessions", "import_sessions"]

_ASSISTANT = ("reasoning", "function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ADVANCED = {
    "message_structure": ("session_id", "message_id", "branch_id", "sequence_number"),
    "turn_usage": (
        *("session_id", "branch_id", "user_turn_number", "requests", "input_tokens", "output_tokens", "total_tokens"),
        *("input_tokens_details", "output_tokens_details", "created_at"),
    ),
}


def import_sessions(
    store: Store,
    source: Source,
    *,
    sessions_table: str = "agent_sessions",
    messages_table: str = "agent_messages",
    owner: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Import:
    """Import every session of an openai-agents database, each as a context.

    Args:
        source: a URL, the path of a SQLite file, or an engine.
        owner: whose they are here.
        progress: called with the number done.

    The session's name is in ``metadata["openai_agents"]``. A session has no usage but where ``AdvancedSQLiteSession``
    wrote it turn by turn: that is in the ledger as ``imported``, and in the context's sums.

    Raises:
        ConfigurationError: there is no such table.
        StoreError: the database cannot be read.
    """
    found = _sessions(source, sessions_table, messages_table)
    return store._runner.drive(bring(messages_table, found, owner, progress))


async def aimport_sessions(
    store: Store,
    source: Source,
    *,
    sessions_table: str = "agent_sessions",
    messages_table: str = "agent_messages",
    owner: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Import:
    """``import_sessions`` for asyncio; ``source`` is read in a thread."""
    found = _sessions(source, sessions_table, messages_table)
    return await store._runner.adrive(bring(messages_table, found, owner, progress))


def _sessions(source: Source, sessions_table: str, messages_table: str) -> Brought:
    with open_source(source) as c:
        table = reflected(c, messages_table, "id", "session_id", "message_data", "created_at")
        names = sa.inspect(c).get_table_names()
        sessions = reflected(c, sessions_table, "session_id", "created_at") if sessions_table in names else None
        advanced = {n: reflected(c, n, *columns) for n, columns in _ADVANCED.items() if n in names}
        query: Any = sa.select(raw(c, table.c.session_id).label("name")).distinct()
        if sessions is not None:
            query = sa.union(query, sa.select(raw(c, sessions.c.session_id).label("name")))
        for name in sorted(c.scalars(query), key=str):
            yield shown(name), tried(partial(_session, c, name, table, sessions, advanced))


def _session(
    c: sa.Connection, name: Any, table: sa.Table, sessions: sa.Table | None, advanced: Mapping[str, sa.Table]
) -> Found:
    if not isinstance(name, str):
        raise PayloadError(f"the id of a session is a text, this is {checks.kind(name)}")
    rows, notes = _rows(c, name, table, advanced.get("message_structure"))
    began = _time(_began(c, name, sessions)) or (_time(rows[0][2]) if rows else None) or _EPOCH
    identity = codec.stable_id(began, f"openai-agents:{name}")
    items = [(_item(text, number), _time(when)) for number, text, when in rows]
    messages = _messages(items)
    for position, message in enumerate(messages):
        message["id"] = str(codec.message_id_of(identity, position))
    head = Head(
        id=identity,
        thread_id=identity,
        started_at=began,
        updated_at=max([began, *(when for _, when in items if when is not None)]),
        metadata={"openai_agents": {"session_id": name}},
    )
    usage = _usage(c, name, identity, advanced.get("turn_usage"))
    for entry in usage:
        if entry.usage is not None:
            head.carried_usage = head.carried_usage + entry.usage
        head.carried_unpriced += 1
    checks.check_counts(head.carried_usage, "the usage of all turns")
    return Document(head, codec.validated(messages)), usage, notes


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _began(c: sa.Connection, name: str, sessions: sa.Table | None) -> Any:
    if sessions is None:
        return None
    when = text_of(c, sessions.c.created_at)
    return c.execute(sa.select(when).where(raw(c, sessions.c.session_id) == name)).scalar()


def _rows(c: sa.Connection, name: str, table: sa.Table, structure: sa.Table | None) -> tuple[Sequence[Any], list[str]]:
    """The rows of a session as they were added: by id, since their times may be equal, or those of a transaction."""
    columns = (raw(c, table.c.id), text_of(c, table.c.message_data), text_of(c, table.c.created_at))
    query = sa.select(*columns).where(raw(c, table.c.session_id) == name)
    if structure is None:
        return c.execute(query.order_by(table.c.id)).all(), []
    of_session = raw(c, structure.c.session_id) == name
    branches = set(c.scalars(sa.select(raw(c, structure.c.branch_id)).where(of_session).distinct()))
    if not branches:
        return c.execute(query.order_by(table.c.id)).all(), []
    mine = sa.and_(structure.c.message_id == table.c.id, of_session, structure.c.branch_id == "main")
    found = c.execute(query.join(structure, mine).order_by(structure.c.sequence_number, table.c.id)).all()
    return found, [f"the branch {branch!r} was left out" for branch in sorted(branches - {"main"}, key=str)]


def _item(text: Any, number: Any) -> dict[str, Any]:
    """An item of which the keys are checked that say what it is."""
    if not isinstance(text, str | bytes):
        raise PayloadError(f"row {number}: an item is a JSON text, this is {checks.kind(text)}")
    try:
        found = jsontext.loads(text)
    except PayloadError as error:
        raise PayloadError(f"row {number}: {error}") from error
    if not isinstance(found, dict):
        raise PayloadError(f"row {number}: an item is an object, this is {checks.kind(found)}")
    jsontext.check_loaded(found, f"row {number}")
    for key in ("type", "role"):
        if not isinstance(found.get(key), str | None):
            raise PayloadError(f"row {number}: {key}: must be a string, this is {checks.kind(found[key])}")
    return found


def _time(text: Any) -> dt.datetime | None:
    """A time of that database: without a zone, in UTC. None when it is none, or none that UTC has a form for."""
    try:
        time = dt.datetime.fromisoformat(str(text))
        return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return None


# -- items to messages


def _messages(items: Sequence[tuple[dict[str, Any], dt.datetime | None]]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for item, when in items:
        kind = item.get("type") or "message"
        if kind in _OUTPUTS and _call_of(item) not in names:
            kind = f"openai_agents.{kind}"
        role = _role(item, kind)
        parts, rest = _parts(item, kind, names)
        last = out[-1] if out else None
        if last is None or last["role"] != role or role not in ("assistant", "tool") or _ended(last, kind):
            last = {"role": role, "content": []}
            if when is not None:
                last["created_at"] = when.isoformat()
            out.append(last)
        last["content"] += parts
        if rest:
            last.setdefault("metadata", {}).setdefault("openai_agents", []).append(rest)
    for message in out:
        content = message["content"]
        if len(content) == 1 and content[0].keys() == {"type", "text"} and content[0]["type"] == "text":
            message["content"] = content[0]["text"]
    return out


def _ended(message: Mapping[str, Any], kind: str) -> bool:
    """Whether the reply was whole before an item of ``kind``: after a text there comes no reasoning of the same one."""
    return kind == "reasoning" and any(part["type"] in ("text", "tool_call", "refusal") for part in message["content"])


def _role(item: Mapping[str, Any], kind: str) -> str:
    if kind == "message":
        return item.get("role") or "user"
    return "tool" if kind in _OUTPUTS else "assistant"


def _parts(item: dict[str, Any], kind: str, names: dict[str, str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The parts of an item, and what of it has no place in them."""
    if kind == "message":
        content = item.get("content")
        listed = content if isinstance(content, list) else [{"type": "input_text", "text": content}]
        pairs = [_piece(p) for p in listed if p is not None and not (isinstance(p, dict) and p.get("text", "") is None)]
        rest = _left(item, ("role", "content", "type"))
        beside = [r for _, r in pairs]
        if any(beside):
            rest["content"] = beside
        return [p for p, _ in pairs], rest
    if kind in ("function_call", "custom_tool_call") and isinstance(item.get("name"), str):
        call = _call_of(item) or str(item.get("id") or "")
        key = "arguments" if kind == "function_call" else "input"
        arguments = item.get(key)
        names[call] = item["name"]
        text = arguments if isinstance(arguments, str) else jsontext.dumps(arguments if arguments is not None else {})
        rest = _left(item, ("call_id", "name", key, *(("type",) if kind == "function_call" else ())))
        return [{"type": "tool_call", "id": call, "name": item["name"], "arguments": text}], rest
    if kind in _OUTPUTS:
        call = _call_of(item)
        part = {"type": "tool_result", "id": call, "name": names[call], "value": item.get("output")}
        return [part], _left(item, ("call_id", "output", *(("type",) if kind == "function_call_output" else ())))
    if kind == "reasoning":
        summary = item.get("summary")
        pieces = summary if isinstance(summary, list) else []
        texts = [p["text"] for p in pieces if isinstance(p, dict) and isinstance(p.get("text"), str)]
        return [{"type": "reasoning", "text": "\n\n".join(texts)}], item
    return [{**item, "type": f"openai_agents.{kind}" if kind in _OURS else kind}], {}


_OURS = frozenset({"text", "reasoning", "refusal", "tool_call", "tool_result", "image", "file", "data", *_ASSISTANT})


def _call_of(item: Mapping[str, Any]) -> str:
    return str(item.get("call_id") or "")


def _left(item: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    return {k: v for k, v in item.items() if k not in known and v is not None and v != []}


def _piece(piece: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    if isinstance(piece, str):
        return {"type": "text", "text": piece}, {}
    if not isinstance(piece, dict):
        return {"type": "data", "value": piece}, {}
    kind = piece.get("type")
    if kind in ("input_text", "output_text", "text") and isinstance(piece.get("text"), str):
        return {"type": "text", "text": piece["text"]}, _left(piece, ("type", "text"))
    if kind == "refusal" and isinstance(piece.get("refusal"), str):
        return {"type": "refusal", "text": piece["refusal"]}, _left(piece, ("type", "refusal"))
    if kind == "input_image" and isinstance(piece.get("image_url"), str):
        part = {"type": "image", **_media(piece["image_url"])}
        if isinstance(piece.get("detail"), str):
            part["detail"] = piece["detail"]
        return part, _left(piece, ("type", "image_url", "detail"))
    if kind == "input_file" and isinstance(piece.get("file_data"), str):
        part = {"type": "file", **_media(piece["file_data"])}
        if isinstance(piece.get("filename"), str):
            part["name"] = piece["filename"]
        return part, _left(piece, ("type", "file_data", "filename"))
    if kind in ("input_image", "input_file"):
        return {"type": "file", "file": {k: v for k, v in piece.items() if k != "type"}}, {}
    return {"type": "data", "value": piece}, {}


def _media(address: str) -> dict[str, str]:
    """A ``data:`` address as its bytes, anything else as the address that it is."""
    head, comma, data = address.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return {"data": data, "media_type": head[5:-7] or "application/octet-stream"}
    return {"url": address}


# -- usage


def _usage(c: sa.Connection, name: str, identity: UUID, table: sa.Table | None) -> list[UsageEntry]:
    if table is None:
        return []
    numbers = ("user_turn_number", "requests", "input_tokens", "output_tokens", "total_tokens")
    query = sa.select(
        *(raw(c, table.c[number]).label(number) for number in numbers),
        text_of(c, table.c.input_tokens_details).label("of_input"),
        text_of(c, table.c.output_tokens_details).label("of_output"),
        text_of(c, table.c.created_at).label("when"),
    ).where(raw(c, table.c.session_id) == name, table.c.branch_id == "main")
    out = []
    for row in c.execute(query.order_by(table.c.user_turn_number)):
        entry = codec.stable_id(_time(row.when) or _EPOCH, f"openai-agents:{name}:usage:{row.user_turn_number}")
        of_input, of_output = _details(row.of_input), _details(row.of_output)
        counts = {
            "input_tokens": row.input_tokens,
            "output_tokens": row.output_tokens,
            "total_tokens": row.total_tokens,
            "cache_read_tokens": of_input.get("cached_tokens"),
            "reasoning_tokens": of_output.get("reasoning_tokens"),
        }
        try:
            usage = TokenUsage.model_validate(counts)
        except ValidationError as error:
            raise checks.refusal(error, counts, f"the usage of turn {row.user_turn_number}") from error
        checks.check_counts(usage, f"the usage of turn {row.user_turn_number}")
        out.append(
            UsageEntry(
                id=entry,
                context_id=identity,
                turn_id=entry,
                attempt=1,
                kind="imported",
                outcome="ok",
                provider="unknown",
                requested_model="unknown",
                created_at=_time(row.when) or _EPOCH,
                usage=usage,
                usage_raw={
                    "turn": row.user_turn_number,
                    "requests": row.requests,
                    "input_tokens_details": of_input,
                    "output_tokens_details": of_output,
                },
            )
        )
    return out


def _details(text: Any) -> dict[str, Any]:
    try:
        found = jsontext.loads(text) if text else None
    except PayloadError:
        return {}
    return found if isinstance(found, dict) else {}
