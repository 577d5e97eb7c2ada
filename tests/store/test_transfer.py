"""Export and import: a copy is equal, twice is once, and a damaged file says which line."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store
from ctxstore.errors import ConfigurationError, ContextNotFoundError
from ctxstore.testing import ScriptedProvider

from .transfers import ODD, OLD, PEAK, PRICES, exported, imported, resealed

# -- there and back


@pytest.mark.parametrize("atomic", [False, True])
def test_a_copy_is_equal(origin: Store, store: Store, atomic: bool) -> None:
    data = exported(origin)
    report = imported(store, data, atomic=atomic)
    assert (report.imported, report.there, report.clashes) == (5, 0, [])
    assert exported(store) == data, "line by line, on every database"
    both = origin.verify(against=store)
    assert not both.findings and both.digest == both.against
    assert not store.verify().findings
    by = ("owner", "kind", "outcome", "model")
    assert store.usage(by=by, include_imported=True) == origin.usage(by=by, include_imported=True)
    for row in origin.list(archived=None):
        assert store.export(row.id) == origin.export(row.id)
        assert [(m.position, m.retired, m.message) for m in store.history(row.id)] == [
            (m.position, m.retired, m.message) for m in origin.history(row.id)
        ]
        assert store.in_flight(row.id) == origin.in_flight(row.id)
        there, here = store.get(row.id).to_dict(), origin.get(row.id).to_dict()
        assert {k: v for k, v in there.items() if k != "last_save"} == {
            k: v for k, v in here.items() if k != "last_save"
        }
    assert store.search("another way") and not store.search("nowhere")


def test_a_line_is_one_state_at_any_isolation_level(store: Store, url: str) -> None:
    """A turn that is saved between the head and the messages is in neither."""
    ctx = store.create(ScriptedProvider(["one", "two", "three"]))
    ctx.talk("a")
    level = "SERIALIZABLE" if url.startswith("sqlite") else "READ COMMITTED"
    host = sa.create_engine(url, isolation_level=level)
    turns = ["b", "c"]  # under the export, and under the check

    @sa.event.listens_for(host, "after_cursor_execute")
    def head_was_read(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "FROM ctxstore_contexts" in statement and "payload" in statement and turns:
            ctx.talk(turns.pop())

    reader = Store(host)
    first = json.loads(exported(reader).splitlines()[0])
    assert len(ctx.messages) == 4, "a turn was saved while the export ran"
    assert len(first["messages"]) == first["context"]["next_position"] == 2
    assert not reader.verify().findings and not turns
    host.dispose()


def test_the_same_file_twice_adds_nothing(origin: Store, store: Store) -> None:
    data = exported(origin)
    first = imported(store, data)
    again = imported(store, data)
    assert first.attempts > 0
    assert (again.imported, again.there, again.attempts, again.clashes) == (0, 5, 0, [])
    assert exported(store) == data


def test_what_went_on_since_is_a_clash_and_stays(origin: Store, store: Store) -> None:
    data = exported(origin)
    imported(store, data)
    row = store.list(owner="team-9")[0]
    ctx = store.load(row.id, ScriptedProvider(["newer"]))
    ctx.talk("since then")
    report = imported(store, data)
    assert (report.imported, report.there) == (0, 4)
    assert [r.key for r in report.clashes] == [row.id] and "another content" in report.clashes[0].reason
    assert store.load(row.id, ScriptedProvider([])).messages[-1].text == "newer"


def test_a_copy_goes_on(origin: Store, store: Store) -> None:
    imported(store, exported(origin))
    row = next(r for r in store.list(owner="team-7") if store.in_flight(r.id))
    ctx = store.load(row.id, ScriptedProvider(["there"], prices=PRICES))
    assert ctx.resend(store.in_flight(row.id)[0]).text == "there"
    assert ctx.metadata["odd"] == ODD and ctx.metadata["big"] == 2**70
    assert not store.verify().findings


def test_a_choice_of_contexts(origin: Store, store: Store) -> None:
    row = origin.list(owner="team-9")[0]
    report = imported(store, exported(origin, ids=[row.id]))
    assert report.imported == 1 and store.list()[0].id == row.id
    mine = exported(origin, owner="team-8").splitlines()
    assert len(mine) == 2 and json.loads(mine[0])["ledger"], "the ledger of a deleted context is its owner's too"
    with pytest.raises(ContextNotFoundError):
        exported(origin, ids=[row.id], owner="team-7")
    with pytest.raises(ContextNotFoundError):
        exported(store, ids=[origin.list(owner="team-7")[0].id])


def test_a_line_is_json_with_retired_rows_at_their_positions(origin: Store) -> None:
    lines = [json.loads(line) for line in exported(origin).splitlines()]
    assert lines[-1] == {"ctxstore_export": 1, "end": {"contexts": 5, "ledgers": 1}}
    first = next(line for line in lines if line.get("in_flight"))
    assert [m["position"] for m in first["messages"]] == list(range(first["context"]["next_position"]))
    assert [m["position"] for m in first["messages"] if "retired_at_revision" in m] == [2, 3, 4, 5]
    assert first["usage"] and first["in_flight"] and "last_save" not in first["context"]


def test_asyncio(origin: Store, aurl: str, tmp_path: Path) -> None:
    origin.export_to(tmp_path / "all.jsonl")

    async def main() -> tuple[Any, Any, Any]:
        async with Store(aurl) as store:
            await store.aimport_from(tmp_path / "all.jsonl", atomic=True)
            again = await store.aimport_from(tmp_path / "all.jsonl")
            await store.aexport_to(tmp_path / "back.jsonl")
            return again, await store.averify(), None

    again, checked, _ = asyncio.run(main())
    assert again.there == 5 and not checked.findings
    assert (tmp_path / "back.jsonl").read_bytes() == (tmp_path / "all.jsonl").read_bytes()


def test_progress_and_files(origin: Store, store: Store, tmp_path: Path) -> None:
    seen: list[Any] = []
    path = tmp_path / "all.jsonl"
    origin.export_to(path, progress=lambda *at: seen.append(at))
    assert seen[-1] == (5, 5)
    store.import_from(path, progress=seen.append)
    assert seen[-1] == 5
    assert [p.name for p in tmp_path.iterdir() if "jsonl" in p.name] == ["all.jsonl"]
    with pytest.raises(ConfigurationError, match="cannot be read"):
        store.import_from(tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        store.export_to(tmp_path / "nowhere" / "x")


def test_a_failed_export_leaves_the_file_from_before(origin: Store, tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError):
        origin.export_to(path, progress=lambda *at: 1 // 0)
    assert path.read_text() == "before" and len([p for p in tmp_path.iterdir() if "jsonl" in p.name]) == 1


def test_what_stands_at_the_path_stays_what_it_is(origin: Store, tmp_path: Path) -> None:
    data = exported(origin)
    (tmp_path / "real").touch(mode=0o600)
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "other").symlink_to("new")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "other"):
        origin.export_to(tmp_path / name)
        assert (tmp_path / name).is_symlink() and (tmp_path / name).read_bytes() == data
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600, "conversations are nobody else's"
    with subprocess.Popen(["cat", tmp_path / "fifo"], stdout=subprocess.PIPE) as reader:
        origin.export_to(tmp_path / "fifo")
        assert reader.communicate()[0] == data
    with pytest.raises(ConfigurationError, match="cannot be written"):
        origin.export_to(tmp_path)


def _full(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Full(io.BytesIO):
    write = _full


def test_a_full_disk_is_told(origin: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", _full)
    for target in (tmp_path / "all.jsonl", _Full()):
        with pytest.raises(ConfigurationError, match="No space left"):
            origin.export_to(target)
    assert not [p for p in tmp_path.iterdir() if "jsonl" in p.name]


@pytest.mark.databases("sqlite")
def test_an_atomic_import_from_a_pipe(origin: Store, store: Store, tmp_path: Path) -> None:
    origin.export_to(tmp_path / "all.jsonl")
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen(["cp", "--", tmp_path / "all.jsonl", tmp_path / "fifo"]):
        assert store.import_from(tmp_path / "fifo", atomic=True).imported == 5


def test_a_row_that_is_no_json_is_reported_and_the_others_are_exported(origin: Store, store: Store) -> None:
    row = origin.list(owner="team-9")[0]
    with origin.engine.begin() as c:
        c.execute(
            sa.text("update ctxstore_messages set payload = '{\"cut' where context_id = :i and position = 0"),
            {"i": str(row.id)},
        )
    file = io.BytesIO()
    report = origin.export_to(file)
    assert report.contexts == 4 and [r.key for r in report.refused] == [row.id]
    assert imported(store, file.getvalue()).imported == 4


def _no_contexts(origin: Store) -> bytes:
    return exported(origin, owner="team-8")


def test_a_context_deleted_while_the_export_runs_is_in_it_once(
    origin: Store, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxstore.store.transfer.HEADS", 2)
    going = [row.id for row in origin.list(archived=None)]

    def delete(*_: Any) -> None:
        if going:
            origin.delete(going.pop())

    file = io.BytesIO()
    report = origin.export_to(file, progress=delete)
    found = [json.loads(line) for line in file.getvalue().splitlines()[:-1]]
    ids = [line["context"]["id"] if "context" in line else line["ledger"] for line in found]
    assert ids == sorted({*ids}) and report.contexts + report.ledgers == len(ids)
    assert imported(store, file.getvalue()).imported == report.contexts
    assert exported(store) == file.getvalue()


@pytest.mark.parametrize("atomic", [False, True])
def test_one_ledger_in_two_exports(origin: Store, store: Store, atomic: bool) -> None:
    data = _no_contexts(origin)
    assert imported(store, data + data, atomic=atomic).attempts == 1
    both = exported(origin, ids=[origin.list(owner="team-9")[0].id]) + data
    assert imported(store, both + both, atomic=atomic).there == 1


def test_an_attempt_with_another_content_is_a_clash(origin: Store, store: Store) -> None:
    """Be its context gone in both, or only here."""
    data = _no_contexts(origin)
    changed = resealed(data, lambda line: line["usage"][0].update(input_tokens=9))
    report = imported(store, data + changed)
    assert report.attempts == 1 and "line 3" in report.clashes[0].reason and "ledger" in report.clashes[0].reason
    assert [(r.table, r.key) for r in imported(store, changed).clashes] == [
        ("ctxstore_usage", UUID(json.loads(data.splitlines()[0])["ledger"]))
    ]
    assert exported(store) == data
    row = next(r for r in origin.list(owner="team-7") if origin.in_flight(r.id))
    one = exported(origin, ids=[row.id])
    imported(store, one)
    store.delete(row.id)
    back = imported(store, resealed(one, lambda line: line["usage"][0].update(latency_ms=12_345)))
    assert (back.imported, back.attempts, [r.key for r in back.clashes]) == (1, 0, [row.id])
    store.delete(row.id)
    assert imported(store, one).clashes == [], "as it was: what is there is equal"


# -- payloads


def test_payloads_one_a_line(store: Store) -> None:
    ctx = Context(ScriptedProvider(["one"]))
    ctx.talk("a")
    lines = [path.read_text(encoding="utf-8").strip() for path in OLD] + [ctx.to_json()]
    data = "\n".join(lines).encode()
    report = imported(store, data, owner="moved")
    paid = sum(row.requests for row in store.usage(owner="moved", include_imported=True))
    assert (report.imported, report.attempts) == (len(lines), paid) and paid > len(OLD)
    again = imported(store, data, owner="moved")
    assert (again.imported, again.there, again.attempts) == (0, len(lines), 0)
    assert [len(r.clashes) for r in [imported(store, data, owner="another")]] == [len(lines)]
    assert store.load(ctx.id, ScriptedProvider([])).messages[-1].text == "one"
    assert store.usage(owner="moved") == [] and store.usage(owner="moved", include_imported=True)


def test_two_exports_after_one_another(origin: Store, store: Store) -> None:
    rows = origin.list(archived=None)
    data = exported(origin, ids=[rows[0].id]) + b"\n" + exported(origin, ids=[rows[1].id, rows[2].id])
    assert imported(store, b"\xef\xbb\xbf" + data).imported == 3


# -- many


def test_a_database_goes_through_in_pieces(origin: Store, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxstore.store.transfer.HEADS", 2)
    monkeypatch.setattr("ctxstore.store.transfer.PARCELS", 2)
    monkeypatch.setattr("ctxstore.store.verify.HEADS", 2)
    monkeypatch.setattr("ctxstore.store.transfer.ROWS", 7)
    data = exported(origin)
    for atomic in (True, False):
        assert imported(store, data, atomic=atomic).imported == (5 if atomic else 0)
    assert exported(store) == data
    assert store.verify().contexts == 5


_MANY = """
import sys, time
from ctxstore import Store
from ctxstore.testing import ScriptedProvider

from .transfers import ODD, OLD, PEAK, PRICES, exported, imported, resealed
source, target, file = (sys.argv[1], sys.argv[2], sys.argv[3])
step = sys.argv[4]
base = peak()
begin = time.perf_counter()
if step == "export":
    with Store(source) as store:
        report = store.export_to(file)
        print(report.contexts, report.messages, end=" ")
else:
    with Store(target) as store:
        report = store.import_from(file)
        print(report.imported, report.attempts, end=" ")
print(base // 1024, peak() // 1024, round(time.perf_counter() - begin, 1))
"""


@pytest.mark.stress
def test_ten_thousand_conversations(
    _template: Path,  # noqa: PT019
    tmp_path: Path,
    store: Store,
    url: str,
) -> None:
    path = tmp_path / "many.db"
    shutil.copyfile(_template, path)
    text = "There are three blue teapots left on shelf B4. " * 8
    with Store(f"sqlite:///{path}", synchronous="NORMAL") as source:
        llm = ScriptedProvider(prices=PRICES)
        for i in range(10_000):
            ctx = source.create(llm, owner=f"team-{i % 7}")
            ctx.extend([{"role": "user", "content": text}, {"role": "assistant", "content": text}] * 4)
            llm.replies.append({"text": text, "usage": {"input_tokens": i, "output_tokens": 9}})
            ctx.talk("And now?")
        peaks = []
        for step in ("export", "import"):
            command = [
                sys.executable,
                "-c",
                PEAK + _MANY,
                f"sqlite:///{path}",
                url,
                str(tmp_path / "many.jsonl"),
                step,
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(step, "count, rows, MB before, MB at most, seconds:", done.stdout.strip())
            peaks.append(int(done.stdout.split()[3]))
        report = source.verify(against=store)
    assert (report.contexts, report.messages, report.findings) == (10_000, 100_000, [])
    assert report.digest == report.against
    assert max(peaks) < 250, "megabytes, of a file of hundreds"
