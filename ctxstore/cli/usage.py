"""``ctxstore usage``: what was used, by whom, on which model, when, and what it cost."""

from __future__ import annotations

import csv
import datetime as dt
import sys
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from .. import clock
from ..store import UsageRow
from ..store.sums import GROUPINGS
from ..usage import Kind, TokenUsage
from .options import DEFAULT, Database, Json, Owner, age, open_store
from .text import bar, cell, console, count, dollars, print_json, said, sparkline

__all__ = ["print_usage", "register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(usage)


def usage(
    db: Database = DEFAULT,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="Group by any of owner, model, provider, kind, outcome, context, hour, day, week, month; with commas.",
        ),
    ] = "model",
    since: Annotated[
        str | None, typer.Option("--since", help="From then on: 7d, 24h, 2w, or a date such as 2026-01-31.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Before then; written as for --since.")] = None,
    tz: Annotated[str, typer.Option("--tz", help="The zone in which days begin, such as Europe/Berlin.")] = "UTC",
    owner: Owner = None,
    model: Annotated[str | None, typer.Option("--model", help="Only what this model answered.")] = None,
    provider: Annotated[str | None, typer.Option("--provider", help="Only what went to this provider.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only turn, compaction or imported.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for a spreadsheet.")] = False,
    as_json: Json = False,
) -> None:
    """Show what was used and what it cost, from the ledger: no conversation is read."""
    groups = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    for name in groups:
        if name not in GROUPINGS:
            raise typer.BadParameter(f"there is no {name!r}, only {', '.join(GROUPINGS)}", param_hint="--by")
    if as_csv and as_json:
        raise typer.BadParameter("say --csv or --json, not both", param_hint="--csv")
    kinds = {name: name for name in get_args(Kind)}
    if kind is not None and kind not in kinds:
        raise typer.BadParameter(f"there is no kind {kind!r}, only {', '.join(kinds)}", param_hint="--kind")
    zone = _zone(tz)
    begin, end = _time(since, zone, "--since"), _time(until, zone, "--until")
    if begin is not None and end is not None and begin > end:
        raise typer.BadParameter(f"the range ends before it begins, at {begin:%Y-%m-%d %H:%M}", param_hint="--until")
    with open_store(db) as store:
        ask = partial(
            store.usage,
            since=begin,
            until=end,
            tz=zone,
            owner=owner,
            model=model,
            provider=provider,
            kind=kinds[kind] if kind is not None else None,
        )
        rows = ask(by=groups)
        days = ask(by=("day",)) if rows and not (as_csv or as_json) else []
    if as_json:
        print_json([_numbers(row) for row in rows])
    elif as_csv:
        _print_csv(rows, groups)
    else:
        out = console()
        print_usage(out, rows, groups)
        _print_course(out, days)


def _numbers(row: UsageRow) -> dict[str, Any]:
    found = row.to_dict()
    return {("cost_usd" if name == "cost" else name): value for name, value in found.items()}


def _print_csv(rows: Sequence[UsageRow], groups: Sequence[str]) -> None:
    nothing = UsageRow(
        dict.fromkeys(groups), TokenUsage.zero(), None, requests=0, errors=0, unknown=0, unpriced=0, contexts=0
    )
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_numbers(nothing))
    for row in rows:
        writer.writerow([cell(v) if k in groups else "" if v is None else f"{v:f}" if isinstance(v, Decimal) else v
                         for k, v in _numbers(row).items()])  # fmt: skip


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise typer.BadParameter(f"there is no time zone {name!r}", param_hint="--tz") from None


def _time(text: str | None, zone: ZoneInfo, option: str) -> dt.datetime | None:
    if text is None:
        return None
    try:
        if (ago := age(text)) is not None:
            return clock.now() - ago
        time = dt.datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no time: write 7d, 24h, 2w, 2026-01-31 or 2026-01-31T12:00", param_hint=option
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=zone)


def print_usage(out: Console, rows: Sequence[UsageRow], groups: Sequence[str]) -> None:
    """The rows of ``store.usage`` as a table with bars, as wide as ``out`` allows."""
    if not rows:
        out.print(said("no usage recorded", "bright_black"))
        return
    room = ("input", "cache_read", "output", "reasoning") if out.width >= 110 else ("input", "cache_read", "output")
    columns = [c for c in room if out.width >= 88 and (c in {"input", "output"} or any(_of(r, c) for r in rows))]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for group in groups:
        table.add_column(group, style="cyan", overflow="fold", min_width=8)
    for name in ("requests", *columns):
        table.add_column({"cache_read": "cached"}.get(name, name), justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", style="bold", no_wrap=True)
    table.add_column("cost", justify="right", style="green", no_wrap=True)
    width = 0 if out.width < 60 else 10 if out.width < 110 else 20
    if width:
        table.add_column("", no_wrap=True, style="blue", min_width=width)
    most = max(r.usage.total_tokens or 0 for r in rows) or 1
    for row in rows:
        cells = [said(_key(getattr(row, g))) for g in groups]
        cells += [said(count(n)) for n in (row.requests, *(_of(row, c) for c in columns), row.usage.total_tokens)]
        cells.append(said(dollars(row.cost)))
        if width:
            cells.append(said(bar((row.usage.total_tokens or 0) / most, width)))
        table.add_row(*cells)
    if len(rows) > 1:
        _add_total(table, rows, groups, columns)
    out.print(table)
    _print_notes(out, rows)


def _add_total(table: Table, rows: Sequence[UsageRow], groups: Sequence[str], columns: Sequence[str]) -> None:
    total = sum((r.usage for r in rows), TokenUsage.zero())
    costs = [r.cost for r in rows if r.cost is not None]
    cells = [said("all" if i == 0 else "") for i in range(len(groups))]
    sums = [sum(r.requests for r in rows), *(getattr(total, f"{c}_tokens") for c in columns), total.total_tokens]
    cells += [said(count(n)) for n in sums]
    cells.append(said(dollars(sum(costs, Decimal(0)) if costs else None)))
    table.add_section()
    table.add_row(*cells, style="bold")


def _print_course(out: Console, rows: Sequence[UsageRow]) -> None:
    """Tokens day by day, the last days that there is room for; a single day has no course."""
    if len(rows) < 2:
        return
    tokens = {row.day: row.usage.total_tokens or 0 for row in rows}
    last = max(tokens)
    length = min((last - min(tokens)).days + 1, max(out.width - 42, 7))
    days = [last - dt.timedelta(days=ago) for ago in reversed(range(length))]
    line = said("tokens by day ", "bright_black").append(sparkline([tokens.get(day, 0) for day in days]), "blue")
    out.print(line.append(f" {days[0]} to {last}", "bright_black"), soft_wrap=True)


def _print_notes(out: Console, rows: Sequence[UsageRow]) -> None:
    unknown, unpriced = sum(r.unknown for r in rows), sum(r.unpriced for r in rows)
    errors = sum(r.errors for r in rows)
    if errors:
        out.print(said(f"{count(errors)} {'request' if errors == 1 else 'requests'} failed.", "bright_black"))
    if unknown:
        out.print(said(f"{count(unknown)} {_replies(unknown)} did not say what was used.", "yellow"))
    if unpriced:
        out.print(said(f"{count(unpriced)} {_replies(unpriced)} without a price: the cost leaves them out.", "yellow"))


def _replies(number: int) -> str:
    return "reply" if number == 1 else "replies"


def _key(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return "–" if value is None else str(value)


def _of(row: UsageRow, name: str) -> int | None:
    number: int | None = getattr(row.usage, f"{name}_tokens")
    return number
