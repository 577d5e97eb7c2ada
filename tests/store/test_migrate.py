"""Saved payloads move up in bulk, while others write, and whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ctxstore import HasContext, HasContextColumn, HasContextLink, Store, migrate_payloads, new_id
from ctxstore.errors import ConfigurationError, SchemaVersionError
from ctxstore.orm import amigrate_payloads, migrate_table
from ctxstore.orm.bulk import HostColumn
from ctxstore.payload import upcasts
from ctxstore.payload.upcasts import Upcast
from ctxstore.testing import ScriptedProvider

OLD = sorted((Path(__file__).parent.parent / "data" / "llmrb-v1").glob("*.json"))
V1 = (OLD[0].parent / "tool_parallel_done.json").read_text(encoding="utf-8")
LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


class Base(DeclarativeBase):
    pass


class Texts(HasContextColumn, Base):
    __tablename__ = "move_texts"
    __context_column__ = "data"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[str | None] = mapped_column(LONG)
    changed: Mapped[int] = mapped_column(default=0, onupdate=1)

    def context_options(self) -> dict[str, Any]:
        return {"provider": ScriptedProvider(["ok"])}


class Documents(HasContextColumn, Base):
    __tablename__ = "move_documents"
    __context_column__ = "data"
    team: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[Any] = mapped_column(sa.JSON().with_variant(JSONB(), "postgresql"))

    def context_options(self) -> dict[str, Any]:
        return {"provider": ScriptedProvider(["ok"])}


class Whole(HasContext, Base):
    __tablename__ = "move_whole"
    id: Mapped[int] = mapped_column(primary_key=True)

    def context_options(self) -> dict[str, Any]:
        return {"provider": ScriptedProvider(["ok"])}


class Linked(HasContextLink, Base):
    __tablename__ = "move_linked"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def host(engine: sa.Engine) -> sa.Engine:
    Base.metadata.create_all(engine)
    return engine


# -- columns of the host's


def test_every_payload_of_llm_rb_moves_up_and_what_is_broken_stays(host: sa.Engine) -> None:
    texts = [path.read_text(encoding="utf-8") for path in OLD]
    broken = [
        V1[:200],
        '{"schema_version": 4}',
        '{"schema_version": true}',
        '{"schema_version":1,"messages":7}',
    ]
    with Session(host) as session:
        session.add_all(Texts(id=i, data=text) for i, text in enumerate([*texts, *broken, "", " {} ", "[]", None]))
        session.commit()
    count = len(texts)
    report = migrate_payloads(host, Texts, batch=3)
    assert (report.migrated, report.unchanged) == (count, 4)
    assert [r.key for r in report.refused] == list(range(count, count + len(broken)))
    assert "there is no way down" in report.refused[1].reason and report.refused[1].table == "move_texts"
    with Session(host) as session:
        rows = session.scalars(sa.select(Texts).order_by(Texts.id)).all()
        assert [r.data for r in rows[count:]] == [*broken, "", " {} ", "[]", None], "byte by byte as it was"
        assert {r.changed for r in rows} == {0}, "the host's onupdate says when the host changed a row"
        for row, text in zip(rows[:count], texts, strict=True):
            assert [m.role for m in row.context.messages] == [m["role"] for m in json.loads(text)["messages"]]
    assert migrate_payloads(host, Texts).migrated == 0


def test_reading_it_later_gives_the_same_ids_as_reading_it_now(host: sa.Engine) -> None:
    with Session(host) as session:
        session.add_all(Texts(id=i, data=path.read_text(encoding="utf-8")) for i, path in enumerate(OLD))
        session.commit()
        before = {row.id: row.context.to_payload() for row in session.scalars(sa.select(Texts))}
        session.rollback()
    migrate_payloads(host, Texts)
    with Session(host) as session:
        for row in session.scalars(sa.select(Texts)):
            stored, now = json.loads(row.data or ""), row.context.to_payload()
            assert now["id"] == before[row.id]["id"]
            assert now["messages"] == before[row.id]["messages"] == stored["messages"]
            assert stored["token_usage"] == now["token_usage"]


def test_a_json_column_and_a_key_of_two(host: sa.Engine) -> None:
    with Session(host) as session:
        session.add_all(Documents(team=f"t{i % 2}", number=i, data=json.loads(V1)) for i in range(7))
        session.add(Documents(team="t0", number=9, data={}))
        session.add(Documents(team="t1", number=8, data={"schema_version": 99}))
        session.commit()
    report = migrate_payloads(host, Documents, batch=2)
    assert (report.migrated, report.unchanged, [r.key for r in report.refused]) == (7, 1, [("t1", 8)])
    with Session(host) as session:
        row = session.get_one(Documents, ("t1", 3))
        assert row.data["schema_version"] == 3 and len(row.context.messages) == 5
        assert session.get_one(Documents, ("t1", 8)).data == {"schema_version": 99}
        assert row.context.talk("more").text == "ok"
        session.commit()


def test_the_columns_beside_a_document_are_filled(host: sa.Engine) -> None:
    with Session(host) as session:
        session.execute(sa.insert(Whole.__table__).values(id=1, context_data=V1, context_window=1000))
        session.commit()
    assert migrate_payloads(host, Whole).migrated == 1
    with Session(host) as session:
        row = session.get_one(Whole, 1)
        found = (row.context_schema_version, row.context_message_count, row.context_total_tokens, row.context_used)
        assert found == (3, 5, 199, 129)
        assert row.context_window == 1000, "what a document does not say stays"
        assert row.context.talk("more").text == "ok"
        session.commit()
        assert session.get_one(Whole, 1).context_message_count == 7


def test_a_table_without_a_class(host: sa.Engine) -> None:
    with Session(host) as session:
        session.add_all([Texts(id=1, data=V1), Texts(id=2, data="x")])
        session.execute(sa.insert(Whole.__table__).values(id=1, context_data=V1))
        session.commit()
    assert migrate_table(host, "move_texts", "data", dry_run=True).migrated == 1
    report = migrate_table(host, "move_texts", "data")
    assert (report.migrated, [r.key for r in report.refused]) == (1, [2])
    assert migrate_table(host, "move_whole", "context_data").migrated == 1
    with Session(host) as session:
        assert session.get_one(Texts, 1).context.id == json_id(session.get_one(Texts, 1).data)
        assert session.get_one(Whole, 1).context_schema_version == 3
    for wrong in (("nothing", "data"), ("move_texts", "nothing")):
        with pytest.raises(ConfigurationError, match="nothing"):
            migrate_table(host, *wrong)


def json_id(text: str | None) -> Any:
    from uuid import UUID

    return UUID(json.loads(text or "")["id"])


def test_what_keeps_no_document_is_refused(host: sa.Engine) -> None:
    for model in (Linked, int, Base):
        with pytest.raises(ConfigurationError, match="keeps no context in a column"):
            migrate_payloads(host, model)
    for options in ({"batch": 0}, {"batch": True}, {"pause": -1.0}):
        with pytest.raises(ConfigurationError):
            migrate_payloads(host, Texts, **options)


@pytest.mark.databases("postgresql")
def test_a_row_that_the_database_does_not_take_costs_the_others_nothing(host: sa.Engine) -> None:
    table = sa.Table(
        "move_checked", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("data", sa.Text)
    )
    with host.begin() as c:
        table.create(c)
        c.execute(sa.insert(table), [{"id": i, "data": V1} for i in range(5)])
        c.exec_driver_sql("ALTER TABLE move_checked ADD CHECK (id <> 3 OR length(data) < 1500)")
    report = migrate_table(host, "move_checked", "data")
    assert (report.migrated, [r.key for r in report.refused]) == (4, [3])
    assert "check constraint" in report.refused[0].reason


def test_who_writes_in_between_is_not_overwritten(host: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(host) as session:
        session.add_all(Texts(id=i, data=V1) for i in range(4))
        session.commit()
    stages = HostColumn.stages.__get__
    seen: set[Any] = set()

    def slow(row: Any) -> bool:
        if row.key not in seen:
            seen.add(row.key)
            with Session(host) as session:  # what was read is old by the time it would be written
                if row.key == (1,):
                    session.get_one(Texts, 1).context.talk("in between")
                elif row.key == (2,):
                    session.delete(session.get_one(Texts, 2))
                elif row.key == (3,):
                    session.get_one(Texts, 3).data = V1.replace("both cities", "all cities")
                session.commit()
        return True

    monkeypatch.setattr(HostColumn, "stages", property(lambda self: (*stages(self), slow)))
    report = migrate_payloads(host, Texts)
    assert (report.migrated, report.unchanged, report.refused) == (2, 1, [])
    with Session(host) as session:
        assert [m.text for m in session.get_one(Texts, 1).context.messages][-2:] == ["in between", "ok"]
        assert session.get(Texts, 2) is None
        assert session.get_one(Texts, 3).context.messages[1].text == "weather in all cities?"
        assert '"schema_version":3' in (session.get_one(Texts, 3).data or "")


def test_asyncio(host: sa.Engine, aurl: str) -> None:
    with Session(host) as session:
        session.add_all(Texts(id=i, data=V1) for i in range(5))
        session.commit()

    async def main() -> Any:
        engine = create_async_engine(aurl)
        try:
            return await amigrate_payloads(engine, Texts, batch=2, pause=0.001)
        finally:
            await engine.dispose()

    assert asyncio.run(main()).migrated == 5


# -- ctxstore's own tables, and their next version: what a version 4 would do


def _four(message: dict[str, Any], source: Any) -> dict[str, Any]:
    return {**message, "four": f"{message['role']} at last"}


@pytest.fixture
def version_four() -> Iterator[Any]:
    """Within this block the program is one that knows version 4."""

    class Program:
        def __enter__(self) -> None:
            upcasts.STEPS[3] = Upcast("a key more", head=lambda head: {**head, "four": [4]}, message=_four)

        def __exit__(self, *_: Any) -> None:
            upcasts.STEPS.pop(3, None)

    yield Program()
    upcasts.STEPS.pop(3, None)


def talked(store: Store, turns: int, **options: Any) -> Any:
    ctx = store.create(ScriptedProvider([f"reply {i}" for i in range(turns)]), **options)
    for i in range(turns):
        ctx.talk(f"prompt {i}")
    return ctx


def versions(store: Store) -> dict[tuple[str, int | None], int]:
    return {(table.removeprefix("ctxstore_"), version): count for table, version, count in store.payload_versions()}


def test_the_next_version(store: Store, engine: sa.Engine, version_four: Any) -> None:
    talks = [talked(store, 3, owner="o") for _ in range(4)]
    talks[0].rewind(to=3)
    talks[0].save()
    before = {ctx.id: (store.get(ctx.id), store.export(ctx.id)) for ctx in talks}
    assert versions(store) == {("contexts", 3): 4, ("messages", 3): 24}
    with version_four:
        assert store.load(talks[1].id, ScriptedProvider([])).messages[0].four == "user at last", (
            "read before it is moved"
        )
        done: list[tuple[int, int]] = []
        dry = store.migrate_payloads(dry_run=True)
        assert (dry.migrated, dry.unchanged) == (28, 0) and versions(store)[("contexts", 3)] == 4
        report = store.migrate_payloads(batch=5, pause=0.001, progress=lambda *at: done.append(at))
        assert (report.migrated, report.unchanged, report.refused) == (28, 0, [])
        assert done[-1] == (28, 28) and done == sorted(done) and len(done) >= 6
        assert versions(store) == {("contexts", 4): 4, ("messages", 4): 24}
        assert store.migrate_payloads().migrated == 0
        for ctx in talks:
            row, old = before[ctx.id]
            now, new = store.get(ctx.id), store.export(ctx.id)
            assert {**now.to_dict(), "schema_version": 3} == row.to_dict()
            assert new.pop("schema_version") == 4 and new.pop("four") == [4]
            assert [m.pop("four") for m in new["messages"]] == [f"{m['role']} at last" for m in old["messages"]]
            old.pop("schema_version")
            assert new == old, "and nothing else has changed"
        assert len(store.history(talks[0].id)) == 6
        assert not store.verify().findings
        going = store.load(talks[1].id, ScriptedProvider(["newer"]))
        going.talk("on")
    # the older program, on the same database
    assert len(store.list()) == 4
    with engine.connect() as c:
        rows = c.execute(sa.text("select * from ctxstore_contexts order by id")).all()
    with pytest.raises(SchemaVersionError, match=r"4.*newer"):
        store.load(talks[2].id, ScriptedProvider([]))
    with pytest.raises(SchemaVersionError):
        store.messages(talks[2].id)
    talks[2].provider.replies.append("paid for")
    with pytest.raises(SchemaVersionError) as caught:
        talks[2].talk("a turn of a live context from before")
    assert not caught.value.turn or not caught.value.turn.usage, "it is told before anything was paid"
    report = store.migrate_payloads()
    assert report.migrated == 0 and len(report.refused) == 30
    assert {r.key for r in report.refused} == {ctx.id for ctx in talks}
    assert all("there is no way down" in r.reason for r in report.refused)
    with engine.connect() as c:
        assert c.execute(sa.text("select * from ctxstore_contexts order by id")).all() == rows


def test_columns_beside_a_message_follow_what_it_says_now(store: Store, version_four: Any) -> None:
    ctx = talked(store, 3)

    def louder(message: dict[str, Any], source: Any) -> dict[str, Any]:
        return {**message, "content": message["content"].upper()} if message["role"] == "user" else message

    with version_four:
        upcasts.STEPS[3] = Upcast("prompts are loud", message=louder)
        assert [m.text for m in store.search("PROMPT 1")] == ["PROMPT 1"], "SQL finds it in either case"
        assert {f.kind for f in store.verify().findings} == {"projection"}
        assert store.migrate_payloads(batch=4).migrated == 7
        assert {f.text.split()[0] for f in store.verify().findings} == {"title"}, "the next save writes it, or a repair"
        assert not store.verify(repair=True).open
        assert [m.text for m in store.messages(ctx.id)][::2] == ["PROMPT 0", "PROMPT 1", "PROMPT 2"]


def test_a_prompt_in_flight_moves_too(store: Store, version_four: Any) -> None:
    llm = ScriptedProvider([KeyboardInterrupt()])
    ctx = store.create(llm)
    with pytest.raises(KeyboardInterrupt):
        ctx.talk("and then")
    assert versions(store)[("in_flight", 3)] == 1
    with version_four:
        assert store.migrate_payloads().migrated == 2
        assert versions(store)[("in_flight", 4)] == 1
        (flight,) = store.in_flight(ctx.id)
        assert flight.messages[0].text == "and then" and flight.messages[0].four == "user at last"
        assert store.migrate_payloads().migrated == 0


def test_a_row_that_cannot_be_read_costs_the_others_nothing(store: Store, engine: sa.Engine, version_four: Any) -> None:
    bad, good = talked(store, 2), talked(store, 2)
    with engine.begin() as c:
        json_text = '{"role": 7}' if engine.dialect.name == "postgresql" else '{"role": '
        c.execute(
            sa.text("update ctxstore_messages set payload = :p where context_id = :i and position = 1"),
            {"p": json_text, "i": bad.id if engine.dialect.name == "postgresql" else str(bad.id)},
        )
    with version_four:
        report = store.migrate_payloads(batch=2)
        assert (report.migrated, [r.key for r in report.refused]) == (9, [bad.id])
        assert "position 1" in report.refused[0].reason
        assert len(store.load(good.id, ScriptedProvider([])).messages) == 4
        assert versions(store)[("messages", 3)] == 1


def test_writers_lose_nothing_while_it_passes(store: Store, url: str, version_four: Any) -> None:
    """Each writer has a context from before, and goes on while its rows are moved under it."""
    talks = [talked(store, 5) for _ in range(3)]
    stop, failures = threading.Event(), []
    turns = [0] * len(talks)

    def write(index: int) -> None:
        ctx = talks[index]
        try:
            while not stop.is_set() or turns[index] < 5:
                ctx.provider.replies.append(f"live {turns[index]}")
                ctx.talk(f"go on {turns[index]}")
                turns[index] += 1
        except BaseException as error:
            failures.append(error)

    with version_four:
        threads = [threading.Thread(target=write, args=(i,)) for i in range(len(talks))]
        for thread in threads:
            thread.start()
        with Store(url) as other:
            reports = [other.migrate_payloads(batch=2, pause=0.002) for _ in range(2)]
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not failures and not [r for report in reports for r in report.refused]
        for index, ctx in enumerate(talks):
            found = [m.text for m in store.load(ctx.id, ScriptedProvider([])).messages]
            expected = [t for i in range(5) for t in (f"prompt {i}", f"reply {i}")]
            expected += [t for i in range(turns[index]) for t in (f"go on {i}", f"live {i}")]
            assert found == expected
        store.migrate_payloads()
        assert {version for _, version, _ in store.payload_versions()} == {4}
        assert not store.verify().findings


def test_asyncio_on_our_own_tables(store: Store, aurl: str, version_four: Any) -> None:
    talked(store, 2)

    async def main() -> tuple[Any, Any]:
        async with Store(aurl) as other:
            return await other.amigrate_payloads(batch=2), await other.apayload_versions()

    with version_four:
        report, counts = asyncio.run(main())
    assert report.migrated == 5 and {version for _, version, _ in counts} == {4}


# -- kill -9

_RUN = """
import sys
from ctxstore.orm import migrate_table
import sqlalchemy as sa
def told(done, total):
    print(done, flush=True)
print(migrate_table(sa.create_engine(sys.argv[1]), "move_texts", "data", batch=5, pause=0.01, progress=told).migrated)
"""


def killed(host: sa.Engine, rows: int, kills: int) -> None:
    with Session(host) as session:
        session.add_all(Texts(id=i, data=OLD[i % len(OLD)].read_text(encoding="utf-8")) for i in range(rows))
        session.commit()
    url = host.url.render_as_string(hide_password=False)
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = 0
    for kill in range(kills):
        command = [sys.executable, "-c", _RUN, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            while int(process.stdout.readline()) < (kill + 1) * rows // (kills + 2):
                pass
            process.send_signal(signal.SIGKILL)
        with Session(host) as session:
            texts = session.scalars(sa.select(Texts.data).order_by(Texts.id)).all()
        moved = sum('"schema_version":3' in (text or "") for text in texts)
        assert done <= moved < rows
        done = moved
        for i, text in enumerate(texts):
            assert '"schema_version":3' in (text or "") or text == OLD[i % len(OLD)].read_text(encoding="utf-8")
    assert done > 0
    report = migrate_payloads(host, Texts)
    assert (report.migrated, report.unchanged, report.refused) == (rows - done, done, [])
    with Session(host) as session:
        for row in session.scalars(sa.select(Texts)):
            old = json.loads(OLD[row.id % len(OLD)].read_text(encoding="utf-8"))
            assert [m.role for m in row.context.messages] == [m["role"] for m in old["messages"]]


def test_a_run_that_is_killed_is_begun_again(host: sa.Engine) -> None:
    killed(host, 60, 2)


@pytest.mark.stress
def test_a_run_that_is_killed_again_and_again(host: sa.Engine) -> None:
    killed(host, 3_000, 20)


def test_a_batch_is_bounded_by_its_bytes_too(host: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxstore.store.bulk.BYTES", 3 * len(V1) - 10)
    with Session(host) as session:
        session.add_all(Texts(id=i, data=V1) for i in range(10))
        session.commit()
    seen: list[int] = []
    migrate_payloads(host, Texts, progress=lambda done, total: seen.append(done))
    assert seen == [3, 6, 9, 10]


def test_the_key_of_a_record_is_the_id_of_its_context(host: sa.Engine) -> None:
    table = sa.Table("move_uuid", sa.MetaData(), sa.Column("id", sa.Uuid(), primary_key=True), sa.Column("data", LONG))
    key = new_id()
    with host.begin() as c:
        table.create(c)
        c.execute(sa.insert(table).values(id=key, data=V1))
    migrate_table(host, "move_uuid", "data")
    with host.begin() as c:
        assert json_id(c.execute(sa.select(table.c.data)).scalar()) == key
        table.drop(c)
