"""PostgreSQL behind a pooler in transaction mode: each transaction may go to another server process."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Store
from ctxstore.errors import StaleContextError
from ctxstore.testing import ScriptedProvider

from .oracle import Processes, driver_url, journal, stored, world

pytestmark = pytest.mark.databases("postgresql")
SERVER_CONNECTIONS = 2

SETTINGS = """
[databases]
{database} = host={host} port={port} dbname={database} user={user}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
server_round_robin = 1
max_client_conn = 100
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def pooled(empty_url: str) -> Iterator[str]:
    """The URL of an empty database by way of a pooler that has two connections to it."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    server, listen = sa.make_url(empty_url), free_port()
    account: dict[str, Any] = {}
    if os.getuid() == 0:  # which pgbouncer does not run as
        account = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
    directory = Path(tempfile.mkdtemp(prefix="ctxstore-pooler-"))
    file = directory / "pgbouncer.ini"
    file.write_text(
        SETTINGS.format(
            database=server.database,
            host=server.host or "127.0.0.1",
            port=server.port or 5432,
            user=server.username or "postgres",
            password=f" password={server.password}" if server.password else "",
            listen=listen,
            size=SERVER_CONNECTIONS,
        )
    )
    if account:
        for path in (directory, file):
            shutil.chown(path, "nobody")
    log = (directory / "log").open("wb")
    process = subprocess.Popen([program, str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **account)
    try:
        until = time.monotonic() + 30
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", listen)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < until, (directory / "log").read_text()
            time.sleep(0.02)
        there = server.set(host="127.0.0.1", port=listen, username="someone", password=None)
        yield there.render_as_string(hide_password=False)
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def _hands_around(pooled: str) -> None:
    """Have the pooler open all its connections, and see that a session has no server process of its own here."""
    engine = sa.create_engine(pooled, connect_args={"prepare_threshold": None})
    with engine.connect() as a, engine.connect() as b, engine.connect() as c:
        process = sa.text("SELECT pg_backend_pid()")
        assert a.scalar(process) != b.scalar(process)
        a.rollback()
        b.rollback()
        seen = set()
        for _ in range(4):
            seen.add(c.scalar(process))
            c.rollback()
        assert len(seen) == SERVER_CONNECTIONS, "one session, transactions in several processes"
    engine.dispose()


@pytest.mark.parametrize("way", ["sync", "async", "other async"])
def test_every_verb_works_behind_it(pooled: str, way: str) -> None:
    with world(driver_url(pooled, way), way) as do:
        do("upgrade")
        do("upgrade")
        provider = ScriptedProvider([f"r{n}" for n in range(20)])
        ctx = do("create", provider, owner="o", metadata={"n": 2**70})
        for n in range(12):  # statements that are repeated are what a driver prepares
            do("talk", f"q{n}", on=ctx)
        live = do("load", ctx.id, ScriptedProvider(["stale", "more"]))
        do("talk", "q12", on=ctx)
        with pytest.raises(StaleContextError):
            do("talk", "late", on=live)
        with do.lease(ctx.id, ScriptedProvider(["leased"]), wait=10) as leased:
            do("talk", "q13", on=leased)
        back = do("load", ctx.id, ScriptedProvider())
        assert back.metadata == {"n": 2**70} and len(back.messages) == 28
        assert len(do("messages", ctx.id, limit=99)) == len(do("history", ctx.id)) == 28
        assert [s.id for s in do("list", owner="o")] == [ctx.id]
        assert len(do("search", "q1", owner="o")) == 5
        fork = do("fork", ctx.id, at=3)
        assert fork.message_count == 4
        (row,) = do("usage", by=("owner",))
        assert row.requests == 14
        do("delete", ctx.id)


@pytest.mark.parametrize(("work", "leased"), [("share", True), ("ashare", False)])
def test_many_processes_behind_it(pooled: str, tmp_path: Path, work: str, leased: bool) -> None:
    engine = sa.create_engine(pooled, connect_args={"prepare_threshold": None})
    processes = Processes(tmp_path / "errors")
    try:
        with Store(pooled) as store:
            store.upgrade()
            ctx = store.create(ScriptedProvider())
            path = tmp_path / "journal"
            processes.run(work, url=pooled, id=ctx.id, processes=4, turns=4, leased=leased, journal=path)
            done, told = journal(path, "done"), journal(path, "told")
            assert done and len({*done, *told}) == 16 and (not told or not leased)
            rows = stored(engine, ctx.id)
            assert [position for position, _, _ in rows] == list(range(2 * len(done)))
            assert sorted(content for _, _, content in rows[::2]) == sorted(done)
            assert [content for _, _, content in rows[1::2]] == [f"r{c[1:]}" for _, _, c in rows[::2]]
            assert store.in_flight(ctx.id) == []
    finally:
        processes.close()
        engine.dispose()
