"""Moving saved payloads up in bulk, against reading and writing the same rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ctxstore import Store
from ctxstore.orm import migrate_table
from ctxstore.payload import upcasts
from ctxstore.payload.upcasts import Upcast

from .measure import Line, compare
from .rows import Floor
from .saving import filled

__all__ = ["moving"]

OLD = Path(__file__).parent.parent / "data" / "llmrb-v1"
BATCH = 500


def moving(name: str, url: str, quick: bool) -> list[Line]:
    """The lines about payloads that move."""
    rounds, many = (2, 500) if quick else (7, 5_000)
    plain = Floor(url)
    engine = sa.create_engine(url)
    lines = [
        *_column(name, engine, plain, many, 1, rounds),
        *_column(name, engine, plain, many // 10, 10, rounds),
        _own(name, url, plain, many, rounds),
    ]
    engine.dispose()
    plain.close()
    return lines


def _column(name: str, engine: sa.Engine, plain: Floor, many: int, length: int, rounds: int) -> list[Line]:
    """Documents that llm.rb wrote, in a text column of the host's; the messages of each so many times over."""
    short = [json.loads(path.read_text()) for path in sorted(OLD.glob("*.json"))]
    old = [json.dumps({**d, "messages": d["messages"] * length}, separators=(",", ":")) for d in short]
    plain.c.execute("DROP TABLE IF EXISTS bench_chats")
    plain.c.execute("CREATE TABLE bench_chats (id INTEGER PRIMARY KEY, data TEXT)")
    insert = "INSERT INTO bench_chats (id, data) VALUES (?, ?)".replace("?", plain.mark)
    plain.begin()
    plain.many(insert, [(i, old[i % len(old)]) for i in range(many)])
    plain.commit()

    def ours() -> None:
        assert migrate_table(engine, "bench_chats", "data", batch=BATCH).migrated == many

    ours()
    new = dict(plain.all("SELECT id, data FROM bench_chats"))
    back = [(old[i % len(old)], i) for i in range(many)]
    change = "UPDATE bench_chats SET data = ? WHERE id = ?".replace("?", plain.mark)

    def reset() -> None:
        plain.begin()
        plain.many(change, back)
        plain.commit()

    parsed = {key: json.loads(text) for key, text in new.items()}

    def floor(value: Callable[[int, str], str]) -> None:
        after = -1
        while rows := plain.all(f"SELECT id, data FROM bench_chats WHERE id > ? ORDER BY id LIMIT {BATCH}", after):
            after = rows[-1][0]
            values = [(value(key, text), key) for key, text in rows]
            plain.begin()
            plain.many(change, values)
            plain.commit()

    def bare(key: int, text: str) -> str:
        return new[key]

    def with_json(key: int, text: str) -> str:
        json.loads(text)
        return json.dumps(parsed[key])

    kilobytes = sum(map(len, new.values())) / many / 1000
    what = f"{name}: move {many:,} documents of version 1 up to {kilobytes:.0f} KB each, in a column"
    mine = _timed(reset, ours)
    return [
        compare(
            f"{what}, against parsing and writing the JSON too",
            mine,
            _timed(reset, lambda: floor(with_json)),
            rounds,
            3.0,
        ),
        compare(f"{what}, against the rows alone", mine, _timed(reset, lambda: floor(bare)), rounds),
    ]


def _own(name: str, url: str, plain: Floor, many: int, rounds: int) -> Line:
    """Messages in ctxstore's own tables, to a version 4 that adds a key to each."""
    four = Upcast("a key more", message=lambda message, source: {**message, "four": True})
    payload = "payload" if plain.sqlite else "payload::text"
    with Store(url) as store:
        ctx, _ = filled(store, many)
        key = plain.key(ctx.id)
        old = plain.all(f"SELECT position, {payload} FROM ctxstore_messages WHERE context_id = ?", key)
        others = plain.all("SELECT count(*) FROM ctxstore_messages WHERE context_id <> ?", key)[0][0]
        change = "UPDATE ctxstore_messages SET schema_version = ?, payload = ? WHERE context_id = ? AND position = ?"
        change = change.replace("?", plain.mark)
        if others:
            raise AssertionError("this measures a database with one conversation")

        def reset() -> None:
            plain.begin()
            plain.many(change, [(3, text, key, position) for position, text in old])
            plain.c.execute("UPDATE ctxstore_contexts SET schema_version = 3")
            plain.commit()

        def ours() -> None:
            upcasts.STEPS[3] = four
            try:
                assert store.migrate_payloads(batch=BATCH).migrated == many + 1
            finally:
                del upcasts.STEPS[3]

        def floor() -> None:
            after = -1
            read = f"SELECT position, {payload} FROM ctxstore_messages WHERE context_id = ? AND position > ? "
            while rows := plain.all(f"{read} ORDER BY position LIMIT {BATCH}", key, after):
                after = rows[-1][0]
                plain.begin()
                plain.many(change, [(4, text[:-1] + ',"four":true}', key, position) for position, text in rows])
                plain.commit()

        head = plain.all(f"SELECT {payload} FROM ctxstore_contexts")[0][0]

        def whole() -> None:
            reset()
            plain.begin()
            plain.c.execute(f"UPDATE ctxstore_contexts SET payload = {plain.mark}", (head,))
            plain.commit()

        return compare(
            f"{name}: move {many:,} messages of ctxstore's own tables up",
            _timed(whole, ours),
            _timed(whole, floor),
            rounds,
            3.0,
        )


def _timed(before: Callable[[], Any], function: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        before()
        begin = time.perf_counter()
        function()
        return time.perf_counter() - begin

    return run
