"""The server dies, restarts, or does the work and never says so: the next call works, nothing acknowledged is gone."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store
from ctxstore.errors import StoreUnavailableError
from ctxstore.testing import ScriptedProvider

from .oracle import World, driver_url, stored, world
from .talker import USAGE


def llm(*replies: str) -> ScriptedProvider:
    return ScriptedProvider([{"text": text, "usage": USAGE} for text in replies])


def texts(engine: sa.Engine, ctx: Context) -> list[Any]:
    rows = stored(engine, ctx.id)
    assert [position for position, _, _ in rows] == list(range(len(rows)))
    return [content for _, _, content in rows]


# -- a PostgreSQL of our own, to be stopped at will


class Cluster:
    """A private PostgreSQL on a port of its own."""

    def __init__(self, programs: Path, directory: Path, user: str | None) -> None:
        self.programs, self.directory = programs, directory
        self.account: dict[str, Any] = {"user": user, "group": pwd.getpwnam(user).pw_gid} if user else {}
        self.account |= {"extra_groups": []} if user else {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"
        options = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync")
        self._run("initdb", *options, "-D", str(directory / "data"))

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            timeout=120,
            check=False,
            cwd=self.directory,
            **self.account,
        )
        log = self.directory / "log"
        assert done.returncode == 0, (done.stderr or b"", log.read_text()[-2000:] if log.exists() else "")

    def start(self) -> None:
        settings = f"-p {self.port} -k {self.directory} -c listen_addresses=127.0.0.1 -c shared_buffers=16MB"
        self._run(
            *("pg_ctl", "start", "-w", "-t", "60", "-D", str(self.directory / "data")),
            *("-l", str(self.directory / "log"), "-o", settings),
        )

    def stop(self) -> None:
        """As a crash of the server would: no process of it finishes what it was at."""
        self._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self.directory / "data"))


@pytest.fixture(scope="module")
def _cluster() -> Iterator[Cluster]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if not found:
        pytest.skip("no PostgreSQL server programs in /usr/lib/postgresql")
    user = "postgres" if os.getuid() == 0 else None  # PostgreSQL does not run as root
    directory = Path(tempfile.mkdtemp(prefix="ctxstore-cluster-"))
    try:
        if user:
            shutil.chown(directory, user)
        cluster = Cluster(found[-1].parent, directory, user)
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    with Store(_cluster.url) as store:
        store.upgrade()
    return _cluster


def wait_for_a_blocked_backend(engine: sa.Engine) -> None:
    until = time.monotonic() + 30
    with engine.connect() as c:
        while not c.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar():
            c.rollback()
            assert time.monotonic() < until, "no save came to the lock"
            time.sleep(0.01)


@pytest.mark.parametrize("way", ["sync", "async", "other async"])
def test_the_server_dies_in_mid_save(cluster: Cluster, way: str) -> None:
    """The head is updated, the messages are inserted, the ledger is next: there it dies, and all of it is undone."""
    engine = sa.create_engine(cluster.url)
    with world(driver_url(cluster.url, way), way) as do:
        provider = llm("one", "two", "three", "four")
        ctx = do("create", provider)
        do("talk", "a", on=ctx)
        blocker = engine.connect()
        blocker.exec_driver_sql("LOCK TABLE ctxstore_usage IN SHARE MODE")

        def die() -> None:
            wait_for_a_blocked_backend(engine)
            cluster.stop()

        dying = threading.Thread(target=die)
        provider.on_request = lambda request: dying.start()
        with pytest.raises(StoreUnavailableError) as caught:
            do("talk", "b", on=ctx)
        dying.join()
        provider.on_request = None
        assert caught.value.retryable and caught.value.turn is not None
        assert [m.text for m in caught.value.turn.messages] == ["b", "two"], "what was paid for is in the error"
        with pytest.raises(StoreUnavailableError):
            do("load", ctx.id, llm())
        blocker.invalidate()
        blocker.close()
        engine.dispose()

        cluster.start()
        assert texts(engine, ctx) == ["a", "one"], "no half of the turn"
        (flight,) = do("in_flight", ctx.id)
        assert [m.text for m in flight.messages] == ["b"]
        do("save", ctx)
        assert texts(engine, ctx) == ["a", "one", "b", "two"]
        do("talk", "c", on=ctx)
        assert texts(engine, ctx) == ["a", "one", "b", "two", "c", "three"]
        assert do("in_flight", ctx.id) == []
        (row,) = do("usage", by=(), context=ctx.id)
        assert row.requests == 3 and row.errors == 0
    engine.dispose()


def keep_on_talking(store: Store, ctx: Context, name: str, until: threading.Event, done: list[str]) -> int:
    """Turn after turn, and through every outage: save what is unsaved, else say it again. How often it was told."""
    told = turn = 0
    while not until.is_set():
        ctx.provider.replies[:] = [{"text": f"r{name}{turn}", "usage": USAGE}]  # type: ignore[attr-defined]
        unsaved = False
        while True:
            try:
                if unsaved:
                    store.save(ctx)
                else:
                    ctx.talk(f"q{name}{turn}")
                break
            except StoreUnavailableError as error:
                told += 1
                unsaved = unsaved or (error.turn is not None and bool(error.turn.messages))
                time.sleep(0.02)
        done.append(f"q{name}{turn}")
        turn += 1
    return told


@pytest.mark.parametrize("restarts", [1, pytest.param(20, marks=pytest.mark.stress)])
def test_restarts_while_many_talk(cluster: Cluster, restarts: int) -> None:
    engine = sa.create_engine(cluster.url)
    with Store(cluster.url) as store:
        talks = {name: (store.create(llm()), list[str]()) for name in "abc"}
        over, told, broken = threading.Event(), [], []

        def talk(name: str) -> None:
            try:
                told.append(keep_on_talking(store, *talks[name][:1], name, over, talks[name][1]))
            except BaseException as error:
                broken.append(error)

        threads = [threading.Thread(target=talk, args=(name,)) for name in talks]
        for thread in threads:
            thread.start()
        for _ in range(restarts):
            seen = {name: len(done) for name, (_, done) in talks.items()}
            wait = time.monotonic() + 60
            while any(len(done) < seen[name] + 3 for name, (_, done) in talks.items()):
                assert time.monotonic() < wait and not broken, (broken, seen)
                time.sleep(0.01)
            cluster.stop()
            time.sleep(0.1)
            cluster.start()
        over.set()
        for thread in threads:
            thread.join()
        assert broken == [] and sum(told) >= restarts
        acknowledged = 0
        for name, (ctx, done) in talks.items():
            acknowledged += len(done)
            wanted = [text for n in range(len(done)) for text in (f"q{name}{n}", f"r{name}{n}")]
            assert texts(engine, ctx) == wanted, "every turn, once, in its order"
            assert [m.text for m in store.load(ctx.id, llm()).messages] == wanted
            assert store.in_flight(ctx.id) == []
        assert all(store.usage(by=(), context=ctx.id)[0].requests == len(done) for ctx, done in talks.values())
        print(f"{restarts} restarts, {acknowledged} acknowledged turns, {sum(told)} errors, none lost")
    engine.dispose()


# -- a wire that breaks where we say


class Wire:
    """A TCP proxy that breaks when it is told to, see ``cut``; while ``down`` it lets nobody in."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.words, self.count, self.deliver, self.stay_down = b"", 0, False, False
        self.cuts, self.down = 0, False
        self.open: set[socket.socket] = set()
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def cut(self, words: bytes, count: int = 1, *, deliver: bool, stay_down: bool = False) -> None:
        """Break at the ``count``-th time that a client says ``words``; before the server hears it, or its answer."""
        with self.lock:
            self.words, self.count, self.deliver, self.stay_down, self.cuts = words, count, deliver, stay_down, 0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.down:
                client.close()
                continue
            server = socket.create_connection(self.target)
            with self.lock:
                self.open |= {client, server}
            muted = threading.Event()
            for pump in (self._ask, self._answer):
                thread = threading.Thread(target=pump, args=(client, server, muted))
                thread.start()
                self.threads.append(thread)

    def _ask(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        for data in self._received(client):
            if self._is_the_one(data):
                if not self.deliver:
                    break
                muted.set()
            try:
                server.sendall(data)
            except OSError:
                break
        self._close(client, server)

    def _is_the_one(self, data: bytes) -> bool:
        with self.lock:
            if not self.count or self.words not in data:
                return False
            self.count -= 1
            if self.count:
                return False
            self.cuts += 1
            self.down = self.stay_down
            return True

    def _answer(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        for data in self._received(server):
            if muted.is_set():
                break  # the server has done it, and nobody hears of it
            try:
                client.sendall(data)
            except OSError:
                break
        self._close(client, server)

    @staticmethod
    def _received(end: socket.socket) -> Iterator[bytes]:
        while True:
            try:
                data = end.recv(65536)
            except OSError:
                return
            if not data:
                return
            yield data

    def _close(self, *ends: socket.socket) -> None:
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        with self.lock:
            self.open -= set(ends)

    def close(self) -> None:
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        self.threads[0].join()
        self._close(*self.open)
        for thread in self.threads:
            thread.join(timeout=30)


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    parsed = sa.make_url(url)
    default = 5432 if parsed.get_backend_name() == "postgresql" else 3306
    found = Wire(parsed.host or "127.0.0.1", parsed.port or default)
    yield found
    found.close()


def through(wire: Wire, url: str, way: str) -> sa.URL:
    """``url`` by way of ``wire``, and without TLS, so that the wire hears what is said."""
    parsed = driver_url(url, way).set(host="127.0.0.1", port=wire.port)
    if parsed.get_backend_name() != "postgresql":
        return parsed
    return parsed.update_query_dict({"ssl" if parsed.drivername.endswith("asyncpg") else "sslmode": "disable"})


ways = pytest.mark.parametrize("way", ["sync", "async", "other async"])
servers = pytest.mark.databases("postgresql", "mysql")


@servers
@ways
@pytest.mark.parametrize("deliver", [True, False], ids=["answer lost", "COMMIT lost"])
def test_a_commit_that_breaks_is_decided_by_reading(
    url: str, engine: sa.Engine, wire: Wire, way: str, deliver: bool
) -> None:
    """COMMIT breaks in the creation, before a request, in a save, in a lease: each is done once, and nobody is told."""
    with world(through(wire, url, way), way) as do:
        for breaking in (1, 2, 3):  # to create it, to begin, to save
            wire.cut(b"COMMIT", breaking, deliver=deliver)
            ctx = do("create", llm("one", "two"))
            do("talk", "a", on=ctx)
            do("talk", "b", on=ctx)
            assert wire.cuts == 1
            holds(do, engine, ctx, ["a", "one", "b", "two"])
        for breaking in (1, 2, 3, 4, 5):  # to take it, to load, to begin, to save, to give it back
            wire.cut(b"COMMIT", breaking, deliver=deliver)
            with do.lease(ctx.id, llm(f"more {breaking}"), wait=10) as live:
                do("talk", f"c{breaking}", on=live)
            assert wire.cuts == 1
            assert texts(engine, ctx)[-2:] == [f"c{breaking}", f"more {breaking}"]
            assert do("get", ctx.id).locked_by is None
        assert len(texts(engine, ctx)) == 14


def holds(do: World, engine: sa.Engine, ctx: Context, wanted: list[str]) -> None:
    assert texts(engine, ctx) == wanted == [m.text for m in ctx.messages]
    assert do("in_flight", ctx.id) == []
    (row,) = do("usage", by=(), context=ctx.id)
    assert row.requests == len(wanted) // 2 and row.errors == 0


@servers
@ways
@pytest.mark.parametrize(
    ("words", "deliver"),
    [(b"INSERT INTO ctxstore_usage", False), (b"COMMIT", False), (b"COMMIT", True)],
    ids=["in mid save", "COMMIT lost", "answer lost"],
)
def test_the_server_goes_away_in_a_save(
    url: str, engine: sa.Engine, wire: Wire, way: str, words: bytes, deliver: bool
) -> None:
    """It is not there for the second try either: the caller is told, and what she does next finds out what was done."""
    with world(through(wire, url, way), way) as do:
        for after in ("save", "talk"):
            provider = llm("one", "two", "three")
            ctx = do("create", provider)
            do("talk", "a", on=ctx)
            provider.on_request = lambda request: wire.cut(words, deliver=deliver, stay_down=True)
            with pytest.raises(StoreUnavailableError) as caught:
                do("talk", "b", on=ctx)
            provider.on_request = None
            assert wire.cuts == 1 and caught.value.turn is not None
            assert [m.text for m in caught.value.turn.messages] == ["b", "two"]
            with pytest.raises(StoreUnavailableError):
                do("get", ctx.id)
            wire.down = False
            assert texts(engine, ctx) == (["a", "one", "b", "two"] if deliver else ["a", "one"])
            if after == "save":
                do("save", ctx)
                holds(do, engine, ctx, ["a", "one", "b", "two"])
            do("talk", "c", on=ctx)
            holds(do, engine, ctx, ["a", "one", "b", "two", "c", "three"])
