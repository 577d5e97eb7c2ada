"""``ctxstore list``, ``show``, ``archive``, ``delete``: the conversations themselves."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ConfigurationError
from ..usage import COUNTS, PICO
from .options import DEFAULT, Database, Identity, Json, Owner, open_store
from .text import console, count, dollars, print_json, said, short, when
from .voices import print_message

__all__ = ["register"]

COLUMNS = (
    "id",
    "owner",
    "title",
    "provider",
    "model",
    "mode",
    "message_count",
    "context_used",
    "context_window",
    *COUNTS,
    "unpriced",
    "compacted",
    "forked_from",
    "forked_at",
    "created_at",
    "updated_at",
    "archived_at",
    "schema_version",
    "revision",
)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("list")(list_)
    app.command()(show)
    app.command()(archive)
    app.command()(delete)


Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many at most.")]


def list_(
    db: Database = DEFAULT,
    owner: Owner = None,
    archived: Annotated[bool, typer.Option("--archived", help="Those that were archived, too.")] = False,
    limit: Limit = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Go on where an earlier list ended.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List conversations, the one with the newest turn first."""
    with open_store(db) as store:
        found = store.list(owner=owner, archived=archived, limit=limit, after=after)
    if as_json:
        print_json([{**_fields(s), "cursor": s.cursor} for s in found])
        return
    out = console()
    if not found:
        out.print(said("no conversations", "bright_black"))
        return
    out.print(_table(out, found))
    if len(found) == limit:
        out.print(said(f"more: --after {found[-1].cursor}", "bright_black"), soft_wrap=True)


def _fields(row: Any) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in COLUMNS}, "cost_usd": _cost(row)}


def _cost(row: Any) -> Decimal | None:
    return None if row.cost_pico_usd is None else Decimal(row.cost_pico_usd) / PICO


def _table(out: Console, rows: Any) -> Table:
    wide = out.width >= 110
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("id", style="cyan", no_wrap=True, min_width=36)
    table.add_column("last turn", no_wrap=True)
    if wide or any(r.owner is not None for r in rows):
        table.add_column("owner", overflow="ellipsis", no_wrap=True)
    if wide:
        table.add_column("model", overflow="ellipsis", no_wrap=True)
    table.add_column("messages" if wide else "msgs", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    if wide:
        table.add_column("cost", justify="right", style="green", no_wrap=True)
    names = [str(c.header) for c in table.columns]
    for row in rows:
        cells = {
            "id": str(row.id),
            "last turn": when(row.updated_at) + (" ▪" if row.archived_at else ""),
            "owner": row.owner or "–",
            "model": row.model or "–",
            "messages": count(row.message_count),
            "msgs": count(row.message_count),
            "tokens": count(row.total_tokens),
            "cost": dollars(_cost(row)),
        }
        table.add_row(*(said(cells[name]) for name in names))
    return table


def show(
    identity: Identity,
    db: Database = DEFAULT,
    owner: Owner = None,
    limit: Limit = 50,
    before: Annotated[
        int | None, typer.Option("--before", metavar="POSITION", help="Messages before this position: an earlier page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a conversation: what it is, and its last messages."""
    with open_store(db) as store:
        head = store.get(identity, owner=owner)
        messages = store.messages(identity, limit=limit, before=before, owner=owner)
    if as_json:
        print_json(
            {**_fields(head), "messages": [{"position": m.position, **m.message.to_payload()} for m in messages]}
        )
        return
    out = console()
    out.print(_summary(head))
    out.print()
    if messages and messages[0].position:
        out.print(said(f"earlier: --before {messages[0].position}", "bright_black"))
    for row in messages:
        print_message(out, row.message)


def _summary(row: Any) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column()
    cost = dollars(_cost(row)) + (f" and {count(row.unpriced)} replies without a price" if row.unpriced else "")
    window = f" of {count(row.context_window)}" if row.context_window else ""
    lines = {
        "id": Text(str(row.id), "cyan"),
        "title": row.title and said(short(row.title, 200)),
        "owner": row.owner and said(row.owner),
        "model": row.model and said(f"{row.provider} {row.model}"),
        "talked": said(f"{when(row.created_at)} to {when(row.updated_at)}"),
        "archived": row.archived_at and said(when(row.archived_at)),
        "fork of": row.forked_from and said(f"{row.forked_from} at position {row.forked_at}"),
        "messages": said(count(row.message_count) + (", compacted" if row.compacted else "")),
        "tokens": said(f"{count(row.total_tokens)}, {dollars(_cost(row)) and cost}"),
        "length": row.context_used is not None and said(f"{count(row.context_used)}{window} tokens"),
    }
    for name, value in lines.items():
        if value:
            table.add_row(name, value)
    return table


def archive(
    identity: Identity,
    db: Database = DEFAULT,
    owner: Owner = None,
) -> None:
    """Take a conversation out of the list; nothing of it is deleted."""
    with open_store(db) as store:
        store.archive(identity, owner=owner)
    console().print(said(f"archived {identity}"))


def delete(
    identity: Identity,
    db: Database = DEFAULT,
    owner: Owner = None,
    erase_usage: Annotated[
        bool, typer.Option("--erase-usage", help="Delete what it used from the ledger too: sums shrink.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a conversation for good; what it used stays in the ledger."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError("this deletes for good: say --yes")
        typer.confirm(f"Delete {identity} for good?", abort=True)
    with open_store(db) as store:
        store.delete(identity, owner=owner, erase_usage=erase_usage)
    console().print(said(f"deleted {identity}"))
