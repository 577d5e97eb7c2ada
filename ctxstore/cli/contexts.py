"""Conversations: ``ctxstore list``, ``show``, ``search``, ``fork``, ``archive``, ``delete``, ``purge``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ConfigurationError
from ..store import StoredContext
from .options import DEFAULT, Database, Identity, Json, Owner, age, open_store
from .text import console, count, dollars, print_json, said, short, when
from .voices import print_message

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("list")(list_)
    app.command()(show)
    app.command()(search)
    app.command()(fork)
    app.command()(archive)
    app.command()(delete)
    app.command()(purge)


Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many at most.")]


def list_(
    db: Database = DEFAULT,
    owner: Owner = None,
    archived: Annotated[bool, typer.Option("--archived", help="Those in the archive.")] = False,
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


def _fields(row: StoredContext) -> dict[str, Any]:
    return {**row.to_dict(), "cost_usd": row.cost}


def _table(out: Console, rows: Sequence[StoredContext]) -> Table:
    wide = out.width >= 110
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
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
            "cost": dollars(row.cost),
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


def _summary(row: StoredContext) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column()
    replies = "reply" if row.unpriced == 1 else "replies"
    cost = dollars(row.cost) + (f" and {count(row.unpriced)} {replies} without a price" if row.unpriced else "")
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
        "tokens": said(f"{count(row.total_tokens)}, {dollars(row.cost) and cost}"),
        "length": row.context_used is not None and said(f"{count(row.context_used)}{window} tokens"),
    }
    for name, value in lines.items():
        if value:
            table.add_row(name, value)
    return table


def search(
    text: Annotated[str, typer.Argument(help="What to look for, as it stands in a message.")],
    db: Database = DEFAULT,
    owner: Owner = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """Find messages by their text, in any conversation; the newest first."""
    with open_store(db) as store:
        found = store.search(text, owner=owner, limit=limit)
    if as_json:
        print_json([{"context_id": m.context_id, "position": m.position, **m.message.to_payload()} for m in found])
        return
    out = console()
    if not found:
        out.print(said("nothing found", "bright_black"))
    for row in found:
        out.print(said(row.context_id, "cyan").append(f"  at {row.position}", "bright_black"), soft_wrap=True)
        print_message(out, row.message)


def fork(
    identity: Identity,
    db: Database = DEFAULT,
    owner: Owner = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="POSITION", help="The last message of the fork: its position or its id."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Begin another conversation with the messages of this one; the first stays as it is."""
    place = int(at) if at is not None and at.isdecimal() else at
    with open_store(db) as store:
        made = store.fork(identity, at=place, owner=owner)
    if as_json:
        print_json(_fields(made))
    else:
        console().print(said(f"forked into {made.id}: {count(made.message_count)} messages"))


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
    _sure(f"Delete {identity} for good?", yes)
    with open_store(db) as store:
        store.delete(identity, owner=owner, erase_usage=erase_usage)
    console().print(said(f"deleted {identity}"))


def purge(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Those without a turn for so long: 90d, 12w, 24h.")
    ],
    db: Database = DEFAULT,
    owner: Owner = None,
    remove: Annotated[bool, typer.Option("--delete", help="Delete them for good, instead of archiving them.")] = False,
    erase_usage: Annotated[
        bool, typer.Option("--erase-usage", help="With --delete: what they used leaves the ledger too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")] = False,
) -> None:
    """Archive or delete what is old, in small transactions; stop it at any time and run it again."""
    span = age(older_than)
    if span is None:
        raise typer.BadParameter(f"{older_than!r} is no age: write 90d, 12w or 24h", param_hint="--older-than")
    if remove:
        _sure(f"Delete what had no turn for {older_than}, for good?", yes)
    err = console(err=True)
    with open_store(db) as store:
        with err.status("0 so far") as status:
            number = store.purge(
                span,
                owner=owner,
                action="delete" if remove else "archive",
                erase_usage=erase_usage,
                progress=lambda n: status.update(f"{count(n)} so far"),
            )
    console().print(said(f"{'deleted' if remove else 'archived'} {count(number)}"))


def _sure(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("this deletes for good: say --yes")
    typer.confirm(question, abort=True)
