"""``ctxstore usage``: what was used, by whom, on which model, when, and what it cost."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from .. import clock
from ..usage import COUNTS, TokenUsage
from .options import DEFAULT, Database, Json, Owner, open_store
from .text import bar, console, count, dollars, print_json, said

__all__ = ["print_usage", "register"]

_AGO = re.compile(r"(\d{1,6})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(usage)


def usage(
    db: Database = DEFAULT,
    by: Annotated[
        str,
        typer.Option("--by", help="Group by any of owner, model, provider, kind, context, day, with commas between."),
    ] = "model",
    since: Annotated[
        str | None, typer.Option("--since", help="From then on: 7d, 24h, 2w, or a date such as 2026-01-31.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Before then; written as for --since.")] = None,
    tz: Annotated[str, typer.Option("--tz", help="The zone in which days begin, such as Europe/Berlin.")] = "UTC",
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """Show what was used and what it cost, from the ledger: no conversation is read."""
    groups = tuple(name.strip() for name in by.split(",") if name.strip())
    with open_store(db) as store:
        rows = store.usage(by=groups, since=_time(since, tz), until=_time(until, tz), tz=tz, owner=owner)
    if as_json:
        print_json([{**{g: getattr(r, g) for g in groups}, **_numbers(r)} for r in rows])
        return
    print_usage(console(), rows, groups)


def _numbers(row: Any) -> dict[str, Any]:
    return {
        "requests": row.requests,
        **dict(zip(COUNTS, row.usage.counts(), strict=True)),
        "cost_usd": row.cost,
        "unknown": row.unknown,
        "unpriced": row.unpriced,
    }


def _time(text: str | None, zone: str) -> dt.datetime | None:
    if text is None:
        return None
    if (ago := _AGO.fullmatch(text)) is not None:
        return clock.now() - dt.timedelta(hours=int(ago[1]) * _HOURS[ago[2]])
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time: write 7d, 24h, 2w, 2026-01-31 or 2026-01-31T12:00") from None
    if time.tzinfo is not None:
        return time
    try:
        return time.replace(tzinfo=ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):
        raise typer.BadParameter(f"there is no time zone {zone!r}", param_hint="--tz") from None


def print_usage(out: Console, rows: Sequence[Any], groups: Sequence[str], title: str | None = None) -> None:
    """The rows of ``store.usage`` as a table with bars, as wide as ``out`` allows."""
    if not rows:
        out.print(said("no usage recorded", "bright_black"))
        return
    total = sum((r.usage for r in rows), TokenUsage.zero())
    wide = out.width >= 92
    columns = [c for c in ("input", "cache_read", "output", "reasoning") if wide and _any(rows, c)]
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for group in groups:
        table.add_column(group, style="cyan", overflow="fold", min_width=8)
    table.add_column("requests", justify="right")
    for name in columns:
        table.add_column(
            {"cache_read": "of it cached", "reasoning": "of it reasoning"}.get(name, name), justify="right"
        )
    table.add_column("tokens", justify="right", style="bold")
    table.add_column("cost", justify="right", style="green", no_wrap=True)
    if out.width >= 60:
        table.add_column("", no_wrap=True, style="blue", min_width=10)
    width = max(10, min(24, out.width - 80))
    most = max(r.usage.total_tokens or 0 for r in rows) or 1
    for row in rows:
        cells = [said(_key(getattr(row, g))) for g in groups]
        cells += [said(count(n)) for n in (row.requests, *(_of(row, c) for c in columns), row.usage.total_tokens)]
        cells.append(said(dollars(row.cost) + (" +" if row.cost is not None and row.unpriced else "")))
        if out.width >= 60:
            cells.append(said(bar((row.usage.total_tokens or 0) / most, width)))
        table.add_row(*cells)
    if len(rows) > 1:
        costs = [r.cost for r in rows if r.cost is not None]
        cells = [said("all")] + [said("")] * (len(groups) - 1) if groups else []
        sums = [sum(r.requests for r in rows), *(getattr(total, f"{c}_tokens") for c in columns), total.total_tokens]
        cells += [said(count(n)) for n in sums]
        cells.append(said(dollars(sum(costs, Decimal(0)) if costs else None)))
        table.add_section()
        table.add_row(*cells, style="bold")
    out.print(table)
    unknown, unpriced = sum(r.unknown for r in rows), sum(r.unpriced for r in rows)
    if unknown:
        out.print(said(f"{count(unknown)} {_replies(unknown)} did not say what was used.", "yellow"))
    if unpriced:
        out.print(said(f"{count(unpriced)} {_replies(unpriced)} without a price: the cost leaves them out.", "yellow"))


def _replies(number: int) -> str:
    return "reply" if number == 1 else "replies"


def _key(value: Any) -> str:
    return "–" if value is None else str(value)


def _of(row: Any, name: str) -> int | None:
    number: int | None = getattr(row.usage, f"{name}_tokens")
    return number


def _any(rows: Sequence[Any], name: str) -> bool:
    return name in {"input", "output"} or any(_of(r, name) for r in rows)
