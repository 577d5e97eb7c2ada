"""Export and import: a copy is equal, twice is once, and a damaged file says which line."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store
from ctxstore.errors import ConfigurationError, ContextNotFoundError, TransferError
from ctxstore.testing import ScriptedProvider

OLD = sorted((Path(__file__).parent.parent / "data" / "llmrb-v1").glob("*.json"))
PRICES = {"scripted-1": {"input": 3, "output": 15}}
ODD = "NUL \x00 half \ud83d pair \u2028 \N{SNOWMAN} 'quote' \\ end"


@pytest.fixture
def origin(_template: Path, tmp_path: Path) -> Iterator[Store]:
    """A SQLite store with all that a conversation can have."""
    path = tmp_path / "origin.db"
    shutil.copyfile(_template, path)
    with Store(f"sqlite:///{path}") as store:
        fill(store)
        yield store


def fill(store: Store) -> None:
    usage = {"input_tokens": 100, "output_tokens": 10, "cache_read_tokens": 50}
    llm = ScriptedProvider(
        [{"text": f"a{i}", "usage": usage, "reasoning": "hm"} for i in range(5)]
        + [ValueError("boom"), KeyboardInterrupt()],
        prices=PRICES,
    )
    ctx = store.create(
        llm, owner="team-7", metadata={"odd": ODD, "big": 2**70, "zero": -0.0, "none": None, "empty": ""}
    )
    for text in (ODD, "b", "c"):
        ctx.talk(text)
    ctx.rewind(to=1)
    ctx.talk("another way")
    ctx.talk("w")
    with pytest.raises(ValueError, match="boom"):
        ctx.talk("x")
    with pytest.raises(KeyboardInterrupt):
        ctx.talk("in flight")
    call = {"tool_calls": [{"id": "c1", "name": "t", "arguments": '{"a": 1.10, "cut'}]}
    other = store.create(ScriptedProvider([call, "done"]))
    other.talk("call")
    other.tool("c1", {"deep": [None, 2**70, {"": ODD}]})
    other.talk(other.pending_calls and "" or "go on")
    store.archive(other.id)
    store.fork(ctx.id)
    gone = store.create(ScriptedProvider([{"text": "x", "usage": usage}], prices=PRICES), owner="team-8")
    gone.talk("soon deleted")
    store.delete(gone.id)
    store.import_payload(OLD[-1].read_text(encoding="utf-8"), owner="team-9")
    store.create(ScriptedProvider([]))


def exported(store: Store, **options: Any) -> bytes:
    file = io.BytesIO()
    store.export_to(file, **options)
    return file.getvalue()


def imported(store: Store, data: bytes, **options: Any) -> Any:
    return store.import_from(io.BytesIO(data), **options)


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


# -- bad files


def line_of(data: bytes, number: int) -> bytes:
    return data.splitlines(keepends=True)[number - 1]


def _cut_in_a_line(data: bytes) -> tuple[bytes, int, str]:
    return data[: len(line_of(data, 1)) + 500], 2, "cut"


def _cut_between(data: bytes) -> tuple[bytes, int, str]:
    return b"".join(data.splitlines(keepends=True)[:3]), 3, "cut"


def _line_missing(data: bytes) -> tuple[bytes, int, str]:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[:2] + lines[3:]), 6, "missing"


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


_PEAK = """
def peak():  # getrusage would tell the peak of the process that started this one, where that was higher
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.databases("sqlite")
def test_a_line_of_a_gigabyte_is_not_taken_into_memory(url: str, tmp_path: Path) -> None:
    """What does not begin as it must is refused before it is read to its end."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(b"x")
        file.truncate(10**9)
    code = (
        "import sys; from ctxstore import Store; from ctxstore.errors import TransferError\n"
        "s = Store(sys.argv[1]); base = peak()\n"
        "try: s.import_from(sys.argv[2])\n"
        "except TransferError as e: print(e.line, peak() - base)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", _PEAK + code, url, str(path)], check=True, capture_output=True, text=True
    )
    line, kilobytes = map(int, done.stdout.split())
    assert line == 1 and kilobytes < 60_000


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
                _PEAK + _MANY,
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
