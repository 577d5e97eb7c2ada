"""``ctxstore migrate``, ``export``, ``import``, ``verify``: payloads that move, and the proof that they arrived."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from ..errors import ConfigurationError, StoreError
from ..store.bulk import Refusal
from ..store.engines import host_engine
from ..store.transfer import MAX_LINE
from .options import DEFAULT, Database, Json, Owner, open_store, url_of
from .progress import Meter
from .text import console, count, print_json, said

__all__ = ["register"]

SHOWN = 50
"""Lines of a list that a person is shown; ``--json`` has all of them."""


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(migrate)
    app.command()(export)
    app.command("import")(import_)
    app.command()(verify)


@contextmanager
def _meter(what: str) -> Iterator[Meter]:
    meter = Meter(what)
    try:
        yield meter
    finally:
        meter.end()


def _counts(values: dict[str, Any], err: bool = False) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column()
    for name, value in values.items():
        table.add_row(count(value) if isinstance(value, int) else said(value), said(name))
    console(err).print(table)


def _refusals(title: str, rows: Sequence[Refusal], err: bool = False) -> None:
    if not rows:
        return
    out = console(err)
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False)
    table.add_column("table", no_wrap=True)
    table.add_column("key", style="cyan", overflow="fold")
    table.add_column("reason", overflow="fold")
    for row in rows[:SHOWN]:
        table.add_row(said(row.table), said(row.key), said(row.reason))
    out.print(table)
    if len(rows) > SHOWN:
        out.print(said(f"and {count(len(rows) - SHOWN)} more; --json has them all", "bright_black"))


def migrate(
    db: Database = DEFAULT,
    table: Annotated[
        str | None, typer.Option("--table", help="A table of yours instead of ctxstore's own; SCHEMA.TABLE works too.")
    ] = None,
    column: Annotated[str | None, typer.Option("--column", help="The column of that table with the payloads.")] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="A column of its key, when that is not its primary key; repeatable."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Rows written in one transaction, at most.")] = 500,
    pause: Annotated[float, typer.Option("--pause", min=0, help="Seconds to wait after each batch.")] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Move saved payloads up to this program's version, while others read and write.

    Safe to stop and to run again. What cannot be read is left as it is, and makes the exit code 1. There is no way
    down: upgrade every program before its payloads.
    """
    if (table is None) != (column is None) or (key and table is None):
        raise typer.BadParameter("--table and --column go together, and --key with them")
    with open_store(db) as store, _meter("rows") as meter:
        options: dict[str, Any] = {"dry_run": dry_run, "batch": batch, "pause": pause, "progress": meter}
        if table is None or column is None:
            report = store.migrate_payloads(**options)
        else:
            from ..orm import migrate_table

            engine = host_engine(url_of(db))
            try:
                report = migrate_table(engine, table, column, key or (), **options)
            finally:
                engine.dispose()
    if as_json:
        print_json(report.to_dict())
    else:
        _counts(
            {
                "would be migrated" if dry_run else "migrated": report.migrated,
                "unchanged": report.unchanged,
                "refused": len(report.refused),
            }
        )
        _refusals("left as they are", report.refused)
    if report.refused:
        raise StoreError(f"{_rows(len(report.refused))} cannot be read and {_were(len(report.refused))} left as found")


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{count(number)} rows"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def export(
    identities: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Which conversations; all when none is named.")
    ] = None,
    db: Database = DEFAULT,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; standard output when none is named.")
    ] = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """Write conversations with their history and their ledger, one a line (JSON Lines); the last line says so."""
    with open_store(db) as store, _meter("conversations") as meter:
        report = store.export_to(
            sys.stdout.buffer if out is None else out, owner=owner, ids=identities or None, progress=meter
        )
    sys.stdout.flush()
    aside = out is None  # standard output is taken
    if as_json and not aside:
        print_json(report.to_dict())
    else:
        found = {
            "conversations": report.contexts,
            "messages": report.messages,
            "attempts in the ledger": report.attempts,
            "ledgers of deleted conversations": report.ledgers,
        }
        _counts(found, err=aside)
        _refusals("not in the export", report.refused, err=aside)
    if report.refused:
        raise StoreError(f"{count(len(report.refused))} conversations cannot be read and are not in the export")


def import_(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="An export, or saved payloads one a line; - is standard input.")
    ],
    db: Database = DEFAULT,
    owner: Annotated[
        str | None, typer.Option("--owner", help="Whose the conversations are that come without an owner.")
    ] = None,
    atomic: Annotated[bool, typer.Option("--atomic", help="All of it in one transaction, or nothing.")] = False,
    max_line: Annotated[int, typer.Option("--max-line", min=1, help="Bytes of the longest line.")] = MAX_LINE,
    kind: Annotated[
        str | None,
        typer.Option("--from", help="Another program's database, named by FILE: openai-agents, or llm.rb."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="With --from: the table; openai-agents: that of the messages.")
    ] = None,
    column: Annotated[str, typer.Option("--column", help="With --from llm.rb: the column with the payloads.")] = "data",
    as_json: Json = False,
) -> None:
    """Add conversations from a file, or from another program's database. What is here already is passed over.

    The same id with another content is a clash: reported, not merged, and the exit code is 1.
    """
    with open_store(db) as store, _meter("conversations") as meter:
        if kind is not None:
            from .. import interop

            report = interop.read(store, kind, source, table=table, column=column, owner=owner, progress=meter)
        else:
            with nullcontext(sys.stdin.buffer) if source == "-" else nullcontext(Path(source)) as file:
                report = store.import_from(file, owner=owner, atomic=atomic, max_line=max_line, progress=meter)
    if as_json:
        print_json(report.to_dict())
    else:
        _counts(
            {
                "imported": report.imported,
                "here already": report.there,
                "clashes": len(report.clashes),
                "refused": len(report.refused),
                "attempts added to the ledger": report.attempts,
            }
        )
        _refusals("here with another content, left alone", report.clashes)
        _refusals("refused", report.refused)
        for note in report.notes:
            console().print(said(note, "yellow"))
    if report.clashes or report.refused:
        raise StoreError(
            f"{count(len(report.clashes))} conversations or ledgers are here with another content and were left alone, "
            f"{count(len(report.refused))} cannot be read"
        )


def verify(
    db: Database = DEFAULT,
    against: Annotated[
        str | None, typer.Option("--against", metavar="URL", help="Another database that must hold the same.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write projections anew where they are wrong; nothing else is changed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every row as a load would, and say what is not as it must be; the exit code is 1 when anything is."""
    if against == db:
        raise ConfigurationError("--against names the same database")
    with open_store(db) as store, _meter("conversations") as meter:
        if against is None:
            report = store.verify(repair=repair, progress=meter)
        else:
            with open_store(against) as other:
                report = store.verify(repair=repair, against=other, progress=meter)
    if as_json:
        print_json(report.to_dict())
    else:
        _counts(
            {
                "conversations": report.contexts,
                "messages": report.messages,
                "attempts in the ledger": report.attempts,
                "replies without an attempt": report.unaccounted,
                "findings": len(report.findings),
                "repaired": len(report.findings) - len(report.open),
            }
        )
        console().print(said(f"digest {report.digest}", "bright_black"), soft_wrap=True)
        if report.against is not None:
            console().print(said(f"theirs {report.against}", "bright_black"), soft_wrap=True)
        found = [Refusal(f.kind, f.id, f.text + (" (repaired)" if f.repaired else "")) for f in report.findings]
        _findings(found)
    if report.open:
        number = len(report.open)
        raise StoreError("one finding is open" if number == 1 else f"{count(number)} findings are open")


def _findings(rows: Sequence[Refusal]) -> None:
    if not rows:
        return
    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("id", style="cyan", no_wrap=True, min_width=36)
    table.add_column("kind", no_wrap=True)
    table.add_column("what is wrong", overflow="fold")
    for row in rows[:SHOWN]:
        table.add_row(said(row.key), said(row.table), said(row.reason))
    out.print(table)
    if len(rows) > SHOWN:
        out.print(said(f"and {count(len(rows) - SHOWN)} more; --json has them all", "bright_black"))
