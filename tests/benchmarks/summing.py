"""Sums of a large ledger: the last 30 days of a year and a half, by model and day, and by one owner."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ctxstore import Store, clock
from ctxstore.store.tables import usage
from ctxstore.testing import ScriptedProvider
from ctxstore.usage import COUNTS

from .measure import Line, compare
from .rows import Floor
from .saving import REPLY

__all__ = ["summing"]

DAYS = 540
PRICES = {"scripted-1": {"input": 3, "output": 15}}

# Each row is the one that a real turn wrote, with an id, a context of ten, a time, an owner and a model of its own.
_NUMBERS = {
    True: "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) ",
    False: "WITH numbers(n) AS (SELECT generate_series(1, ?)) ",
}
_IDS = {
    True: "printf('{0:08x}-0000-7000-8000-%012x', {1})",
    False: "CAST('{0:08x}-0000-7000-8000-' || lpad(to_hex({1}), 12, '0') AS uuid)",
}


def _fill(plain: Floor, many: int) -> None:
    now = int(clock.now().timestamp() // 900)
    own: dict[str, str] = {
        "id": _IDS[plain.sqlite].format(1, "n"),
        "context_id": _IDS[plain.sqlite].format(2, "n / 10"),
        "slot": f"{now} - n % {DAYS * 96}",
        "owner": "'owner-' || (n % 100)",
        "model": "'model-' || (n / 7 % 5)",
        "input_tokens": "n % 4000",
        "output_tokens": "n % 700",
    }
    columns = ", ".join(c.name for c in usage.columns)
    values = ", ".join(own.get(c.name, f"u.{c.name}") for c in usage.columns)
    plain.begin()
    numbers = _NUMBERS[plain.sqlite]
    plain.run(f"{numbers}INSERT INTO ctxstore_usage ({columns}) SELECT {values} FROM numbers, ctxstore_usage u", many)
    plain.commit()
    plain.c.execute("ANALYZE")


def summing(name: str, url: str, quick: bool) -> list[Line]:
    """The lines about sums."""
    many, rounds = (20_000, 3) if quick else (1_000_000, 15)
    plain = Floor(url)
    with Store(url) as store:
        plain.c.execute("DELETE FROM ctxstore_usage")
        store.create(ScriptedProvider([REPLY], prices=PRICES)).talk("q")
        _fill(plain, many)
        since = clock.now() - dt.timedelta(days=30)
        first = int(since.timestamp() // 900)

        def by_hand(where: str, *values: Any) -> list[Any]:
            sums = ", ".join(f"sum({c})" for c in [*COUNTS, "cost_pico_usd"])
            return plain.all(
                f"SELECT model, slot / 96, {sums}, count(*), count(DISTINCT context_id), "
                "sum(CASE WHEN outcome IN ('ok', 'lost') THEN 1 ELSE 0 END), "
                "sum(CASE WHEN outcome IN ('ok', 'lost') AND total_tokens IS NULL THEN 1 ELSE 0 END), "
                "sum(CASE WHEN outcome IN ('ok', 'lost') AND cost_pico_usd IS NULL THEN 1 ELSE 0 END) "
                f"FROM ctxstore_usage WHERE slot >= ? AND kind <> 'imported' {where} GROUP BY model, slot / 96",
                first,
                *values,
            )

        def check(rows: list[Any], groups: int) -> None:
            assert len(rows) >= groups

        lines = [
            compare(
                f"{name}: 30 days of {many:,} ledger rows by model and day",
                lambda: check(store.usage(by=("model", "day"), since=since), 150),
                lambda: check(by_hand(""), 150),
                rounds,
                1.2,
            ),
            compare(
                f"{name}: the same for one owner of 100",
                lambda: check(store.usage(by=("model", "day"), since=since, owner="owner-7"), 20),
                lambda: check(by_hand("AND owner = ?", "owner-7"), 20),
                rounds * 3,
            ),
            compare(
                f"{name}: days of New York against days of UTC",
                lambda: check(store.usage(by=("model", "day"), since=since, tz="America/New_York"), 150),
                lambda: check(store.usage(by=("model", "day"), since=since), 150),
                rounds,
            ),
        ]
        plain.c.execute("DELETE FROM ctxstore_usage")
    plain.close()
    return lines
