"""Files that are damaged, or no export: the line is named, and nothing is kept that a store does not write."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Store
from ctxstore.errors import PayloadError, TransferError
from ctxstore.testing import ScriptedProvider

from .transfers import PEAK, exported, imported, resealed


def line_of(data: bytes, number: int) -> bytes:
    return data.splitlines(keepends=True)[number - 1]


def _cut_in_a_line(data: bytes) -> tuple[bytes, int, str]:
    return data[: len(line_of(data, 1)) + 500], 2, "cut"


def _cut_between(data: bytes) -> tuple[bytes, int, str]:
    return b"".join(data.splitlines(keepends=True)[:3]), 3, "cut"


def _line_missing(data: bytes) -> tuple[bytes, int, str]:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[:2] + lines[3:]), 6, "missing"


def _ledger_missing(data: bytes) -> tuple[bytes, int, str]:
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if b',"ledger":' not in line), 6, "1 ledgers, there are 0"


def _changed(data: bytes) -> tuple[bytes, int, str]:
    lines = data.splitlines(keepends=True)
    return lines[0] + lines[1].replace(b'"role"', b'"rolf"', 1) + b"".join(lines[2:]), 2, "hash"


def _other_encoding(data: bytes) -> tuple[bytes, int, str]:
    lines = data.splitlines(keepends=True)
    return lines[0] + b'{"ctxstore_export":1,"x":"\xe4\xf6"}\n', 2, "UTF-8"


def _sixteen(data: bytes) -> tuple[bytes, int, str]:
    return data.decode().encode("utf-16"), 1, "UTF-16"


def _no_export(data: bytes) -> tuple[bytes, int, str]:
    return b"id,owner\n1,team-7\n", 1, "no line of an export"


def _other_json(data: bytes) -> tuple[bytes, int, str]:
    return line_of(data, 1) + b'{"a": 1}\n', 2, "no saved context"


def _newer_form(data: bytes) -> tuple[bytes, int, str]:
    return line_of(data, 1) + b'{"ctxstore_export":2}\n', 2, "only 1 can be read"


def _newer_payload(data: bytes) -> tuple[bytes, int, str]:
    return line_of(data, 1) + b'{"schema_version":99}\n', 2, "newer"


def _sealed_nonsense(data: bytes) -> tuple[bytes, int, str]:
    body = line_of(data, 2).rsplit(b',"hash":', 1)[0].replace(b'"revision":', b'"revision":"x","was":', 1)
    seal = hashlib.sha256(body).hexdigest().encode()
    return line_of(data, 1) + body + b',"hash":"' + seal + b'"}\n', 2, "column"


def _empty(data: bytes) -> tuple[bytes, int, str]:
    return b"", 0, "empty"


BAD = [
    _cut_in_a_line,
    _cut_between,
    _line_missing,
    _ledger_missing,
    _changed,
    _other_encoding,
    _sixteen,
    _no_export,
    _other_json,
    _newer_form,
    _newer_payload,
    _sealed_nonsense,
    _empty,
]


@pytest.mark.parametrize("spoil", BAD)
def test_a_bad_file_names_its_line(
    origin: Store, store: Store, spoil: Callable[[bytes], tuple[bytes, int, str]]
) -> None:
    data, number, word = spoil(exported(origin))
    with pytest.raises(TransferError, match=word) as caught:
        imported(store, data, atomic=True)
    assert caught.value.line == number and "nothing was imported" in str(caught.value)
    assert store.list(archived=None) == [], "all or nothing, as told"
    with pytest.raises(TransferError, match=word) as caught:
        imported(store, data)
    assert caught.value.line == number and (number == 0 or f"line {number}" in str(caught.value))
    assert caught.value.imported == len(store.list(archived=None)), "what came before is there, as told"
    good = exported(origin)
    assert imported(store, good).imported == 5 - caught.value.imported
    assert exported(store) == good


@pytest.mark.databases("sqlite")
def test_a_line_that_is_too_long(origin: Store, store: Store) -> None:
    data = exported(origin)
    with pytest.raises(TransferError, match="longer than") as caught:
        imported(store, data, max_line=1_000)
    assert caught.value.line == 1
    long = line_of(data, 1) + b'{"ctxstore_export":1,"x":"' + b"x" * 3_000_000
    with pytest.raises(TransferError, match="line 2 is longer than 1,000,000 bytes"):
        imported(store, long, max_line=1_000_000)


@pytest.mark.databases("sqlite")
def test_a_line_of_a_gigabyte_is_not_taken_into_memory(url: str, tmp_path: Path) -> None:
    """What does not begin as it must is refused before it is read to its end."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(b"x")
        file.truncate(10**9)
    code = (
        "import sys; from ctxstore import Store; from ctxstore.errors import PayloadError, TransferError\n"
        "s = Store(sys.argv[1]); base = peak()\n"
        "try: s.import_from(sys.argv[2])\n"
        "except TransferError as e: print(e.line, peak() - base)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PEAK + code, url, str(path)], check=True, capture_output=True, text=True
    )
    line, kilobytes = map(int, done.stdout.split())
    assert line == 1 and kilobytes < 60_000


# -- lines whose hash fits


def _put(line: dict[str, Any], path: str, value: Any) -> None:
    *way, last = path.split(".")
    here: Any = line
    for key in way:
        here = here[int(key) if isinstance(here, list) else key]
    if value is None:
        del here[int(last) if isinstance(here, list) else last]
    else:
        here[int(last) if isinstance(here, list) else last] = value


PAST, FUTURE = "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"
DEEP = "[" * 980 + "]" * 980
TOO_DEEP = "[" * 140 + "]" * 140
NEVER_WRITTEN: dict[str, tuple[list[str], list[Any]]] = {
    "infinity": (["usage.0.usage_raw", "usage.0.price", "messages.0.payload.x", "in_flight.0.payload.x"], ["1e999"]),
    "depth": (["payload.x", "payload.metadata.x", "messages.0.payload.x", "in_flight.0.payload.x"], [DEEP, TOO_DEEP]),
    "depth of columns": (["usage.0.usage_raw", "context.title", "context.id", "usage.0.created_at"], [DEEP]),
    "times": (["context.created_at", "messages.0.payload.created_at", "usage.0.created_at"], [PAST, FUTURE]),
    "times in flight": (["in_flight.0.created_at", "in_flight.0.payload.messages.0.created_at"], [PAST, FUTURE]),
    "numbers": (["messages.1.payload.usage.input_tokens", "messages.1.payload.cost_pico_usd"], [-1, 2**63]),
    "sums": (["payload.carried_usage.input_tokens"], [2**63 - 1]),
    "half characters": (["context.owner", "context.title", "usage.0.owner", "usage.0.error"], ["half \ud83d"]),
    "owners": (["context.owner", "usage.0.owner"], ["team ", " team", "", 5]),
    "positions": (["messages.3", "messages.0.position"], [None, 1]),
    "no messages": (["messages", "in_flight.0.payload.messages"], [[], None, 5]),
    "next position": (["context.next_position"], [-1, 0, 99]),
    "revisions": (["messages.2.retired_at_revision"], [-1, 0, 999]),
}


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("what", NEVER_WRITTEN)
def test_a_line_that_no_store_wrote_is_refused_by_its_number(origin: Store, store: Store, what: str) -> None:
    row = next(r for r in origin.list(owner="team-7") if origin.in_flight(r.id))
    data = exported(origin, ids=[row.id])
    for path, value in product(*NEVER_WRITTEN[what]):
        if path.startswith("in_flight") and value == []:
            continue  # a prompt of no messages
        raw = {"RAW": value} if value in ("1e999", DEEP, TOO_DEEP) else {}
        with pytest.raises(TransferError, match="line 1") as caught:
            imported(store, resealed(data, partial(_put, path=path, value="RAW" if raw else value), **raw))
        assert caught.value.line == 1 and "hash" not in str(caught.value)
    assert store.list(archived=None) == [] and store.usage(include_imported=True) == []


DERIVED: list[tuple[str, Any]] = [
    ("context.title", "another"),
    ("context.title", None),
    ("context.revision", 77),
    ("payload.revision", None),
    ("context.message_count", 99),
    ("context.input_tokens", 99),
    ("context.cost_pico_usd", None),
    ("payload.token_usage.input_tokens", 99),
    ("payload.cost", "1.5"),
    ("payload.model", "another"),
    ("messages.1.created_at", "2020-01-01T00:00:00+00:00"),
]


def test_what_only_repeats_the_messages_is_derived_again(origin: Store, store: Store) -> None:
    row = next(r for r in origin.list(owner="team-7") if origin.in_flight(r.id))
    data = exported(origin, ids=[row.id])
    for path, value in DERIVED:
        other = resealed(data, partial(_put, path=path, value=value))
        assert imported(store, other).imported == 1, path
        assert not store.verify().findings, path
        again = imported(store, other)
        assert (again.there, again.clashes) == (1, []), "what was put right is no other content"
        assert imported(store, exported(store)).there == 1
        store.delete(row.id, erase_usage=True)


def test_a_context_whose_messages_are_not_all_there_is_not_exported(origin: Store, store: Store) -> None:
    """The file could not be imported."""
    row = next(r for r in origin.list(owner="team-7") if origin.in_flight(r.id))
    with origin.engine.begin() as c:
        c.execute(sa.text("delete from ctxstore_messages where position = 1 and context_id = :id"), {"id": str(row.id)})
    file = io.BytesIO()
    report = origin.export_to(file)
    assert [r.key for r in report.refused] == [row.id] and "positions" in report.refused[0].reason
    assert imported(store, file.getvalue()).imported == 4


def test_a_stored_time_that_has_no_form_in_utc_stops_no_check(origin: Store) -> None:
    """As an import took it before it was refused."""
    row = next(r for r in origin.list(owner="team-7") if origin.in_flight(r.id))
    change = "update ctxstore_messages set payload = json_set(payload, '$.created_at', :t) where context_id = :id"
    with origin.engine.begin() as c:
        c.execute(sa.text(change), {"id": str(row.id), "t": PAST})
    assert any(f.id == row.id and "no form in UTC" in f.text for f in origin.verify().findings)
    with pytest.raises(PayloadError, match="no form in UTC"):
        origin.load(row.id, ScriptedProvider([]))
