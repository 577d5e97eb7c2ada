"""Saving a turn, at three lengths of a conversation, and the note that it is in flight."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from ctxstore import Context, Store, new_id
from ctxstore.keeper import Keeper, Step
from ctxstore.store.tables import contexts, in_flight, messages, usage
from ctxstore.testing import ScriptedProvider

from .measure import Line, compare
from .rows import Floor

__all__ = ["saving"]

QUESTION = "What do we have left of the blue teapots that came in with the last delivery? " * 5
ANSWER = "There are three blue teapots left on shelf B4; the next delivery is due on Thursday. " * 7
REPLY = {"text": ANSWER, "usage": {"input_tokens": 1000, "output_tokens": 120, "cache_read_tokens": 900}}


class _Timed:
    """A keeper that takes the time of the one behind it."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper, self.times = keeper, dict[str, float]()

    def take(self, step: Step) -> None:
        begin = time.perf_counter()
        self.keeper.take(step)
        self.times[step.kind] = time.perf_counter() - begin

    async def atake(self, step: Step) -> None:
        await self.keeper.atake(step)


def filled(store: Store, length: int) -> tuple[Context, ScriptedProvider]:
    """A saved conversation of ``length`` messages, and who answers in it."""
    llm = ScriptedProvider(prices={"scripted-1": {"input": 3, "output": 15}})
    ctx = store.create(llm, owner="bench")
    pair = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    ctx.extend(pair * (length // 2))
    store.save(ctx)
    return ctx, llm


def saving(name: str, url: str, quick: bool) -> list[Line]:
    """The lines about writing."""
    lines = []
    plain = Floor(url)
    for length, rounds in ((10, 300), (1_000, 200), (100_000, 60)):
        if quick and length > 1_000:
            continue
        rounds = 20 if quick else rounds
        with Store(url) as store, Store(url, record_in_flight=False) as bare:
            ctx, llm = filled(bare, length)
            timed = _Timed(ctx._keeper)
            ctx._bind(timed)
            other, _ = filled(bare, length)
            floor = _turn(plain, ctx, llm, other.id)
            lines.append(
                compare(
                    f"{name}: save a turn, {length:,} messages before",
                    _talk(ctx, llm, timed, "keep"),
                    floor,
                    rounds,
                    2.0,
                )
            )
            if length == 10:
                ctx, llm = filled(store, length)
                timed = _Timed(ctx._keeper)
                ctx._bind(timed)
                note = _note(plain)
                lines.append(
                    compare(f"{name}: note a prompt as in flight", _talk(ctx, llm, timed, "begin"), note, rounds)
                )
    plain.close()
    first, last = lines[0], lines[-1]
    lines.append(
        Line(f"{name}: the same at {100_000 if not quick else 1_000:,} against 10 messages", last.ours, first.ours, 1.5)
    )
    return lines


def _talk(ctx: Context, llm: ScriptedProvider, timed: _Timed, kind: str) -> Callable[[], float]:
    def ours() -> float:
        llm.replies.append(REPLY)
        ctx.talk(QUESTION)
        return timed.times[kind]

    return ours


def _turn(plain: Floor, ctx: Context, llm: ScriptedProvider, floor_id: UUID) -> Callable[[], None]:
    """A turn of the same rows as ctxstore writes: taken from one that it wrote."""
    llm.replies.append(REPLY)
    ctx.talk(QUESTION)
    new = sorted(plain.rows(messages, ctx.id), key=lambda row: row["position"])[-2:]
    (spent,) = plain.rows(usage, ctx.id)
    (head,) = plain.rows(contexts, ctx.id)
    (mine,) = plain.rows(contexts, floor_id)
    state: dict[str, Any] = {"base": mine["last_save"], "position": mine["next_position"], "revision": mine["revision"]}
    key = plain.key(floor_id)

    def floor() -> None:
        token = secrets.token_hex(16)
        state["revision"] += 1
        changed = {
            **head,
            "id": key,
            "last_save": token,
            "revision": state["revision"],
            "next_position": state["position"] + 2,
        }
        rows = [
            {**row, "context_id": key, "position": state["position"] + i, "id": plain.key(new_id())}
            for i, row in enumerate(new)
        ]
        plain.turn(changed, state["base"], rows, {**spent, "context_id": key, "id": plain.key(new_id())})
        state["base"], state["position"] = token, state["position"] + 2

    return floor


def _note(plain: Floor) -> Callable[[], None]:
    payload = '{"schema_version": 3, "messages": [{"role": "user", "content": "' + QUESTION + '"}]}'
    (now,) = plain.all("SELECT created_at FROM ctxstore_contexts LIMIT 1")[0]

    def floor() -> None:
        row = {
            "context_id": plain.key(new_id()),
            "turn_id": plain.key(new_id()),
            "base_revision": 1,
            "created_at": now,
            "payload": payload,
        }
        plain.begin()
        plain.insert(in_flight, [row])
        plain.commit()

    return floor
