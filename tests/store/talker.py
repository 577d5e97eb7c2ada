"""A program that talks in processes of its own and writes down, outside the database, what it was told.

It reads one job a line, ``{"work": ..., "processes": n, ...}``, forks ``n`` children for it, prints their ids, lets
them begin at one moment, and prints how each ended. A journal line is on the disk before the child goes on: what it
says was acknowledged, whatever happens to the child and to the database afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import threading
import traceback
from typing import Any

import sqlalchemy.dialects.mysql.pymysql
import sqlalchemy.dialects.postgresql.psycopg
import sqlalchemy.ext.asyncio  # noqa: F401

from ctxstore import Store
from ctxstore.errors import StaleContextError
from ctxstore.providers.base import ModelRequest, WireRequest
from ctxstore.testing import ScriptedProvider

USAGE = {"input_tokens": 10, "output_tokens": 2}


class Journal:
    """A file that lines are appended to, each at once and for good."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, event: str, text: str) -> None:
        os.write(self.file, json.dumps([event, text]).encode() + b"\n")
        os.fsync(self.file)


def answering(text: str) -> ScriptedProvider:
    return ScriptedProvider([{"text": text, "usage": USAGE}])


class Hasty(ScriptedProvider):
    """One whose requests are over in half a second, so that a lease is not made to last longer for them."""

    def build(self, request: ModelRequest) -> WireRequest:
        return dataclasses.replace(super().build(request), connect_timeout=0.0, first_byte_timeout=0.5)


def share(job: dict[str, Any], number: int, journal: Journal) -> None:
    """Some turns on a context that others talk on too, each on a copy just loaded; a conflict is not repeated."""
    identity = job["id"]
    with Store(job["url"]) as store:
        for turn in range(job["turns"]):
            name = f"{number}.{turn}"
            try:
                if job["leased"]:
                    with store.lease(identity, answering(f"r{name}"), wait=600) as ctx:
                        ctx.talk(f"q{name}")
                else:
                    store.load(identity, answering(f"r{name}")).talk(f"q{name}")
                journal.note("done", f"q{name}")
            except StaleContextError:
                journal.note("told", f"q{name}")


def ashare(job: dict[str, Any], number: int, journal: Journal) -> None:
    """``share`` for asyncio: each turn number is as many tasks as the job says."""
    identity = job["id"]

    async def turn(store: Store, name: str) -> None:
        try:
            if job["leased"]:
                async with store.alease(identity, answering(f"r{name}"), wait=600) as ctx:
                    await ctx.atalk(f"q{name}")
            else:
                await (await store.aload(identity, answering(f"r{name}"))).atalk(f"q{name}")
            journal.note("done", f"q{name}")
        except StaleContextError:
            journal.note("told", f"q{name}")

    async def main() -> None:
        async with Store(job["url"]) as store:
            for first in range(0, job["turns"], 2):
                await asyncio.gather(*(turn(store, f"{number}.{n}") for n in range(first, job["turns"])[:2]))

    asyncio.run(main())


def first(job: dict[str, Any], number: int, journal: Journal) -> None:
    """The first thing that anyone does with a database: make the tables, begin a conversation, talk."""

    def begin(name: str) -> None:
        with Store(job["url"]) as store:
            store.upgrade()
            ctx = store.create(answering(f"r{name}"), owner=name)
            ctx.talk(f"q{name}")
        journal.note("done", name)

    failures: list[BaseException] = []

    def guarded(name: str) -> None:
        try:
            begin(name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(f"{number}.{n}",)) for n in range(job["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


def endless(job: dict[str, Any], number: int, journal: Journal) -> None:
    """Talk until somebody puts an end to it: ``sent`` is noted before a reply, ``done`` when ``talk`` has returned."""
    provider = Hasty()

    def reply(request: Any) -> None:
        text = request.messages[-1].text
        journal.note("sent", text)
        provider.replies.append({"text": f"r{text[1:]}", "usage": USAGE})

    provider.on_request = reply
    with Store(job["url"]) as store:
        with contextlib.ExitStack() as stack:
            if job["leased"]:
                ctx = stack.enter_context(store.lease(job["id"], provider, wait=60, length=job["leased"]))
            else:
                ctx = store.load(job["id"], provider)
            turn = 0
            while True:
                text = f"q{job['life']}.{turn}"
                ctx.talk(text)
                journal.note("done", text)
                turn += 1


WORKS = {f.__name__: f for f in (share, ashare, first, endless)}


def _child(job: dict[str, Any], number: int) -> int:
    try:
        WORKS[job["work"]](job, number, Journal(job["journal"]))
        return 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        gate, opening = os.pipe()
        pids = []
        for number in range(job["processes"]):
            pid = os.fork()
            if pid == 0:
                os.close(opening)
                os.read(gate, 1)  # until all of them are there
                os._exit(_child(job, number))
            pids.append(pid)
        os.close(gate)
        print(json.dumps(pids), flush=True)
        os.close(opening)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)


if __name__ == "__main__":
    main()
