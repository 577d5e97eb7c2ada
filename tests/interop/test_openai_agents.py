"""Sessions that openai-agents really wrote: by its runner with a model of our own, and by ``add_items``."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Store
from ctxstore.errors import ConfigurationError, StoreError
from ctxstore.interop import aimport_sessions, import_sessions
from ctxstore.testing import ScriptedProvider

agents = pytest.importorskip("agents", reason="needs the extra interop")

from agents import Agent, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled  # noqa: E402
from agents.extensions.memory import AdvancedSQLiteSession, SQLAlchemySession  # noqa: E402
from agents.models.interface import Model  # noqa: E402
from openai.types.responses import (  # noqa: E402
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_reasoning_item import Summary  # noqa: E402

set_tracing_disabled(True)
IMAGE = "data:image/png;base64,iVBORw0KGgo="


class Scripted(Model):
    def __init__(self, outputs: list[list[Any]]) -> None:
        self.outputs = outputs

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        used = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=self.outputs.pop(0), usage=used, response_id="resp_1")

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@function_tool
def stock(sku: str) -> str:
    """What is left."""
    return json.dumps({"sku": sku, "left": 3})


def outputs() -> list[list[Any]]:
    thought = ResponseReasoningItem(
        id="rs_1",
        type="reasoning",
        summary=[Summary(text="Look", type="summary_text"), Summary(text="twice", type="summary_text")],
        encrypted_content="gAAAA",
    )
    calls = [
        ResponseFunctionToolCall(
            id=f"fc_{i}", call_id=f"call_{i}", name="stock", arguments=f'{{"sku": "A{i}"}}', type="function_call"
        )
        for i in (1, 2)
    ]
    text = ResponseOutputText(text="Three left ☀", type="output_text", annotations=[])
    said = ResponseOutputMessage(id="msg_1", role="assistant", status="completed", type="message", content=[text])
    return [[thought, *calls], [said], [said]]


async def converse(session: Any) -> None:
    """Two runs by the package's own runner, then items that an application adds by hand."""
    agent = Agent(name="clerk", instructions="Be brief.", model=Scripted(outputs()), tools=[stock])
    assert (await Runner.run(agent, "How many?", session=session)).final_output == "Three left ☀"
    await session.add_items(
        [
            {"role": "user", "content": "Sell all"},
            {
                "type": "message",
                "id": "msg_2",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "refusal", "refusal": "I will not"}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "and \x00 this \u2028"},
                    {"type": "input_image", "image_url": IMAGE, "detail": "low"},
                    {"type": "input_image", "image_url": "https://shop.test/a.png", "detail": "auto"},
                    {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"},
                    {"type": "input_file", "file_id": "file_9"},
                ],
            },
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "x"},
            },
            {"role": "developer", "content": "from now on"},
        ]
    )


def lite(path: Path, name: str) -> Any:
    return SQLiteSession(name, path)


def advanced(path: Path, name: str) -> Any:
    return AdvancedSQLiteSession(session_id=name, db_path=path, create_tables=True)


@pytest.fixture(params=[lite, advanced])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "agents.db"

    async def main() -> None:
        for name in ("user-1", "user-2"):
            session = request.param(path, name)
            await converse(session)
            session.close()

    asyncio.run(main())
    return str(path)


def check(store: Store, name: str = "user-1") -> Any:
    rows = [r for r in store.list(limit=100) if store.export(r.id)["metadata"]["openai_agents"]["session_id"] == name]
    assert len(rows) == 1
    ctx = store.load(rows[0].id, ScriptedProvider(["Gladly."]))
    found = ctx.messages
    assert [m.role for m in found] == [
        *("user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant", "developer")
    ]
    assert found[0].text == "How many?" and found[3].text == "Three left ☀" and found[8].text == "from now on"
    assert found[1].reasoning == "Look\n\ntwice"
    calls = [(c.id, c.name, c.arguments_json) for c in found[1].tool_calls]
    assert calls == [("call_1", "stock", '{"sku": "A1"}'), ("call_2", "stock", '{"sku": "A2"}')]
    results = [(r.id, r.name, json.loads(r.value)) for r in found[2].tool_results]
    assert results == [(f"call_{i}", "stock", {"sku": f"A{i}", "left": 3}) for i in (1, 2)]
    kept = found[1].metadata["openai_agents"]
    assert kept[0]["encrypted_content"] == "gAAAA" and [k["id"] for k in kept] == ["rs_1", "fc_1", "fc_2"]
    assert found[5].content[0].type == "refusal" and found[5].content[0].text == "I will not"
    text, image, linked, document, uploaded = found[6].content
    assert text.text == "and \x00 this \u2028"
    assert (image.data, image.media_type, image.detail) == ("iVBORw0KGgo=", "image/png", "low")
    assert linked.url == "https://shop.test/a.png"
    assert (document.data, document.name) == ("JVBERi0=", "a.pdf")
    assert uploaded.file == {"file_id": "file_9"}
    assert found[7].content[0].to_payload()["action"] == {"type": "search", "query": "x"}
    assert not ctx.pending_calls
    return ctx


@pytest.mark.parametrize("how", [import_sessions, lambda *a, **k: asyncio.run(aimport_sessions(*a, **k))])
def test_sessions_become_contexts_that_go_on(store: Store, file: str, how: Callable[..., Any]) -> None:
    before = Path(file).read_bytes()
    report = how(store, file, owner="moved")
    assert (report.imported, report.there, report.clashes, report.refused) == (2, 0, [], [])
    assert Path(file).read_bytes() == before, "the other program's file is only read"
    ctx = check(store)
    assert ctx.talk("go on").text == "Gladly."
    assert {row.owner for row in store.list()} == {"moved"}
    assert not store.verify().findings


def test_twice_is_once_and_a_session_that_grew_is_a_clash(store: Store, file: str) -> None:
    import_sessions(store, file)
    again = import_sessions(store, file)
    assert (again.imported, again.there, again.attempts) == (0, 2, 0)
    with sqlite3.connect(file) as c:
        branches = c.execute("select 1 from sqlite_master where name = 'message_structure'").fetchone()
    c.close()
    session = (advanced if branches else lite)(Path(file), "user-2")
    asyncio.run(session.add_items([{"role": "user", "content": "later"}]))
    session.close()
    grown = import_sessions(store, file)
    assert (grown.there, [r.key for r in grown.clashes]) == (1, ["user-2"])
    check(store, "user-2")


def test_usage_that_comes_along_is_counted_only_when_asked_for(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"

    async def main() -> None:
        session = advanced(path, "user-1")
        agent = Agent(name="clerk", model=Scripted(outputs()), tools=[stock])
        for prompt in ("How many?", "Sell all"):
            await session.store_run_usage(await Runner.run(agent, prompt, session=session))
        session.close()

    asyncio.run(main())
    report = import_sessions(store, str(path), owner="moved")
    assert (report.imported, report.attempts) == (1, 2)
    assert store.usage() == []
    (row,) = store.usage(by=("kind",), include_imported=True)
    assert (row.kind, row.requests, row.usage.input_tokens, row.usage.total_tokens) == ("imported", 2, 30, 45)
    assert store.list()[0].total_tokens == 45
    assert not store.verify().findings


def with_lengths(engine: sa.Engine) -> None:
    """The tables of ``SQLAlchemySession``, whose VARCHAR without a length MariaDB and MySQL refuse, as somebody makes
    them there by hand."""
    with engine.begin() as c:
        c.exec_driver_sql(
            "create table agent_sessions (session_id varchar(191) not null primary key,"
            " created_at timestamp not null default current_timestamp,"
            " updated_at timestamp not null default current_timestamp)"
        )
        c.exec_driver_sql(
            "create table agent_messages (id integer not null auto_increment primary key,"
            " session_id varchar(191) not null, message_data longtext not null,"
            " created_at timestamp not null default current_timestamp,"
            " foreign key (session_id) references agent_sessions (session_id) on delete cascade)"
        )


def test_a_session_of_sqlalchemy(store: Store, engine: sa.Engine, url: str, aurl: str) -> None:
    by_hand = engine.dialect.name in ("mysql", "mariadb")
    if by_hand:
        with_lengths(engine)

    async def main() -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        own = create_async_engine(aurl)
        session = SQLAlchemySession("user-1", engine=own, create_tables=not by_hand)
        await converse(session)
        await own.dispose()

    asyncio.run(main())
    report = import_sessions(store, url)
    assert (report.imported, report.refused) == (1, [])
    check(store)
    assert import_sessions(store, sa.create_engine(url, poolclass=sa.NullPool)).there == 1


@pytest.mark.databases("sqlite")
def test_a_broken_row_refuses_its_session_and_no_other(store: Store, file: str) -> None:
    with sqlite3.connect(file) as c:
        c.execute("update agent_messages set message_data = '{\"cut' where session_id = 'user-1' and id = 2")
    c.close()
    report = import_sessions(store, file)
    assert (report.imported, [r.key for r in report.refused]) == (1, ["user-1"])
    assert "row 2" in report.refused[0].reason
    check(store, "user-2")


@pytest.mark.databases("sqlite")
def test_branches_are_named(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"

    async def main() -> None:
        session = advanced(path, "user-1")
        await converse(session)
        await session.create_branch_from_turn(2, "other")
        await session.add_items([{"role": "user", "content": "elsewhere"}])
        session.close()

    asyncio.run(main())
    report = import_sessions(store, str(path))
    assert report.imported == 1 and report.notes == ["user-1: the branch 'other' was left out"]
    check(store)


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: None, ConfigurationError),
        (lambda path: sqlite3.connect(path).close(), ConfigurationError),
        (lambda path: path.write_text("no database, but a text " * 50), StoreError),
    ],
)
def test_what_is_no_database_of_theirs(
    store: Store, tmp_path: Path, make: Callable[[Path], Any], kind: type[Exception]
) -> None:
    path = tmp_path / "agents.db"
    make(path)
    with pytest.raises(kind):
        import_sessions(store, str(path))
