"""Whatever stands in another program's rows: each is imported whole or refused by its key, and none stops the rest."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from ctxstore import Store
from ctxstore.interop import import_column, import_sessions
from ctxstore.testing import ScriptedProvider

from .rows import GOOD, V1, chats, sessions

pytestmark = pytest.mark.databases("sqlite")


def loads(store: Store) -> None:
    for row in store.list(limit=100):
        store.load(row.id, ScriptedProvider([]))


# -- one odd row


@pytest.mark.parametrize(
    ("item", "when", "reason"),
    [
        ('{"type": ["message"]}', None, "row 2: type: must be a string, this is a list"),
        ('{"type": {"a": 1}}', None, "row 2: type: must be a string"),
        ('{"type": 5}', None, "row 2: type: must be a string"),
        ('{"role": ["user"], "content": "x"}', None, "row 2: role: must be a string"),
        ("5", None, "row 2: an item is an object, this is a int"),
        (None, None, "row 2: an item is a JSON text, this is null"),
        (b"{\xff", None, "row 2: this is no JSON text"),
        ('{"type": "reasoning", "summary": 5}', None, None),
        ('{"type": "reasoning", "summary": {"text": "x"}}', None, None),
        ('{"type": "function_call_output", "call_id": "a", "output": "x"}', None, None),
        (GOOD, "0001-01-01 00:00:00+14:00", None),
        (GOOD, b"\xff", None),
    ],
)
def test_an_odd_item_stops_no_other_session(
    store: Store, tmp_path: Path, item: Any, when: Any, reason: str | None
) -> None:
    source = sessions(tmp_path / "agents.db", [("a", GOOD, None), ("b", item, when), ("c", GOOD, None)])
    report = import_sessions(store, source)
    assert report.imported == (3 if reason is None else 2)
    assert [r.key for r in report.refused] == ([] if reason is None else ["b"])
    assert reason is None or reason in report.refused[0].reason
    assert not store.verify().findings
    loads(store)


def test_a_text_that_is_no_utf8_refuses_its_session(store: Store, tmp_path: Path) -> None:
    source = sessions(tmp_path / "agents.db", [("a", GOOD, None), ("b", GOOD, None), (b"\xff", GOOD, None)])
    with closing(sqlite3.connect(source)) as c:
        c.execute("update agent_messages set message_data = cast(x'7bff' as text) where session_id = 'b'")
        c.execute("insert into agent_sessions (session_id) values (cast(x'fe' as text)), (null)")
        c.commit()
    report = import_sessions(store, source)
    assert report.imported == 1
    assert {r.key for r in report.refused} == {"b", None, "b'\\xff'", "b'\\xfe'"}
    assert json.dumps(report.to_dict())


@pytest.mark.parametrize("count", ['{"cached_tokens": 9223372036854775808}', '{"cached_tokens": "many"}', "5", "[]"])
def test_odd_counts_refuse_their_session(store: Store, tmp_path: Path, count: str) -> None:
    source = sessions(tmp_path / "agents.db", [("a", GOOD, None), ("b", GOOD, None)])
    with closing(sqlite3.connect(source)) as c:
        c.execute(
            "create table turn_usage (id integer primary key, session_id text, branch_id text,"
            " user_turn_number integer, requests integer,"
            " input_tokens integer, output_tokens integer, total_tokens integer,"
            " input_tokens_details json, output_tokens_details json, created_at timestamp)"
        )
        c.execute("insert into turn_usage values (1, 'b', 'main', 1, 1, 10, 5, 15, ?, null, null)", (count,))
        c.commit()
    report = import_sessions(store, source)
    assert [r.key for r in report.refused] == (["b"] if count.startswith("{") else [])
    assert report.imported + len(report.refused) == 2
    assert all("the usage of turn 1" in r.reason for r in report.refused)
    assert not store.verify().findings


def test_odd_records_stop_no_other(store: Store, tmp_path: Path) -> None:
    rows = [(1, V1), (2, "5"), (3, "  \n"), (4, "[]"), (5, b"{}"), (6, b"\xff"), (7, V1.encode()), (8, "0"), (9, "x")]
    for kind in ("text", "json", "blob"):
        report = import_column(store, chats(tmp_path / "host.db", rows, kind), "chats")
        assert report.imported + report.there == 2
        assert [r.key for r in report.refused] == [2, 6, 9]
    assert not store.verify().findings
    loads(store)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("datetime", ["2024-01-01 00:00:00", "nonsense"]),
        ("uuid", ["0198f2c4-7a10-4c31-9d55-3b1f0e6a9c42", "5"]),
        ("numeric", [5, "many"]),
        ("blob", [b"\xff", "x"]),
    ],
)
def test_a_key_is_taken_as_it_is(store: Store, tmp_path: Path, kind: str, keys: list[Any]) -> None:
    source = chats(tmp_path / "host.db", [(key, V1) for key in keys], key=kind)
    assert import_column(store, source, "chats").imported == 2
    again = import_column(store, source, "chats")
    assert (again.imported, again.there) == (0, 2)


def test_a_record_without_a_key_has_no_name(store: Store, tmp_path: Path) -> None:
    source = chats(tmp_path / "host.db", [(None, V1), (None, V1), ("a", V1)], key="text")
    report = import_column(store, source, "chats")
    assert (report.imported, [r.key for r in report.refused]) == (1, [None, None])


# -- any row


@pytest.fixture
def memory() -> Iterator[Store]:
    with Store("sqlite://") as store:
        store.upgrade()
        yield store


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
pieces = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["input_text", "output_text", "refusal", "input_image", "input_file"]) | anything,
        **dict.fromkeys(("text", "refusal", "image_url", "detail", "file_data", "filename", "file_id"), anything),
    },
)
TYPES = ("message", "reasoning", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output")
items = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from((*TYPES, "text", "data", "image", "file", "tool_result", "item_reference")) | anything,
        "role": st.sampled_from(["user", "assistant", "system", "tool"]) | anything,
        "content": st.lists(pieces | anything, max_size=3) | anything,
        "summary": st.lists(pieces, max_size=2) | anything,
        "call_id": st.sampled_from(["a", "b"]) | anything,
        **dict.fromkeys(("id", "name", "arguments", "input", "output", "status", "url", "value"), anything),
    },
)
texts = (items | anything).map(json.dumps) | st.text(max_size=8)
many = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@many
@given(st.lists(st.lists(texts, max_size=5), max_size=8))
@example([['{"type": "text", "to_payload": 1, "model_config": {}, "__class__": "x"}']])
@example([['{"role": "user", "content": "\\ud83d\\ude00 \\ud800"}', '{"type": "", "": ""}']])
@example([['{"a":' * 200 + "1" + "}" * 200], ['{"role":"user","content":' + "[" * 127 + "]" * 127 + "}"]])
@example([['{"role":"user","content":%s}' % ("1" * 5000)], ['{"role":"user","content":1e999}']])
def test_any_items_are_imported_or_refused(memory: Store, tmp_path: Path, found: list[list[str]]) -> None:
    rows = [(f"s{i}", text, None) for i, of_one in enumerate(found) for text in of_one]
    source = sessions(tmp_path / "agents.db", rows)
    is_well(memory, lambda: import_sessions(memory, source), {name for name, _, _ in rows})


messages = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool"]) | anything,
        "content": anything | st.lists(pieces | anything, max_size=3),
        "tools": st.lists(st.dictionaries(st.sampled_from(["id", "name", "arguments"]), anything), max_size=2)
        | anything,
        "usage": st.dictionaries(st.sampled_from(["input_tokens", "output_tokens"]), st.integers() | anything)
        | anything,
        **dict.fromkeys(("id", "created_at", "original_tool_calls", "original_tools", "reasoning_content"), anything),
    },
)
documents = st.fixed_dictionaries(
    {"schema_version": st.integers(1, 3) | anything},
    optional={
        "messages": st.lists(messages | anything, max_size=3) | anything,
        **dict.fromkeys(("id", "model", "provider", "params", "metadata", "compacted", "token_usage", "x"), anything),
    },
)


@many
@given(
    st.lists((documents | anything).map(json.dumps) | st.text(max_size=8) | st.binary(max_size=8), max_size=8),
    st.sampled_from(["text", "json", "blob"]),
)
def test_any_documents_are_imported_or_refused(memory: Store, tmp_path: Path, found: list[Any], kind: str) -> None:
    source = chats(tmp_path / "host.db", list(enumerate(found)), kind)
    is_well(memory, lambda: import_column(memory, source, "chats"), None)


def is_well(store: Store, run: Callable[[], Any], keys: set[str] | None) -> None:
    """``keys`` are those that must be in the report, None where some hold nothing."""
    report = run()
    there = store.list(limit=100)
    assert keys is None or report.imported + len(report.refused) == len(keys)
    assert report.imported == len(there) and not report.clashes
    findings = store.verify().findings
    assert [f for f in findings if keys is not None or f.kind != "pair"] == [], "a document may lack a call"
    loads(store)
    again = run()
    assert (again.imported, again.there) == (0, report.imported)
    assert json.dumps(report.to_dict())
    for row in there:
        store.delete(row.id, erase_usage=True)
