"""``ctxstore db``: the tables, brought to the version that this program needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from ..errors import DatabaseNotUpgradedError, PayloadError, SchemaVersionError
from ..payload.upcasts import current as current_version
from ..store import migrations
from ..store.bulk import unreadable
from .options import DEFAULT, Database, Json, open_store
from .text import console, print_json, said

__all__ = ["app"]

app = typer.Typer(
    help="The tables: make them, and bring them to the version that this program needs.", no_args_is_help=True
)


@app.command()
def upgrade(db: Database = DEFAULT) -> None:
    """Make the tables, or bring them up to date; safe to run twice, or from two processes at once.

    Run it when a new version of the program is deployed. A SQLite file is made when it is not there.
    """
    with open_store(db, create=True) as store:
        before = store.current()
        store.upgrade()
        after = store.current()
    change = f"at {after}, nothing to do" if before == after else f"upgraded from {before or 'nothing'} to {after}"
    console().print(said(change))


@app.command()
def current(db: Database = DEFAULT, as_json: Json = False) -> None:
    """Print the version that the tables are in."""
    with open_store(db) as store:
        found = store.current()
    if as_json:
        print_json({"current": found, "head": migrations.head()})
    else:
        console().print(said(found or "no tables of ctxstore"))


@app.command()
def check(db: Database = DEFAULT, as_json: Json = False) -> None:
    """Exit with 1 when the tables are not in the version that this program needs: for deployments.

    Saved payloads are counted by their version, and so is what this program cannot read, which is 1 too.
    """
    head = migrations.head()
    with open_store(db) as store:
        found = store.current()
        counts = store.payload_versions() if found == head else []
    beyond = unreadable(counts)
    if as_json:
        payloads = [
            {"table": t, "schema_version": v, "rows": n, "readable": not unreadable([(t, v, n)])} for t, v, n in counts
        ]
        ok = found == head and not beyond
        print_json({"current": found, "head": head, "ok": ok, "payloads": payloads, "unreadable": beyond})
    if found != head:
        raise DatabaseNotUpgradedError(
            f"the tables are at {found or 'nothing'} and this program needs {head}; run: ctxstore db upgrade --db URL"
        )
    if not as_json:
        console().print(said(f"at {found}, as this program needs"))
        if counts:
            console().print(_versions(counts))
    newer = sum(n for _, v, n in counts if v is not None and v > current_version())
    if newer:
        raise SchemaVersionError(
            f"{newer:,} rows are in a payload version that this program cannot read: a newer ctxstore wrote them, and "
            "there is no way down; run the newer one"
        )
    if beyond:
        raise PayloadError(f"{beyond:,} rows are no payload of any version: damaged; ctxstore verify names them")


def _versions(counts: Sequence[tuple[str, int | None, int]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("table", "payload version", "rows", ""):
        table.add_column(name, justify="right" if name in ("payload version", "rows") else "left")
    for name, version, rows in counts:
        if unreadable([(name, version, rows)]):
            note = said("cannot be read by this program", "red")
        else:
            note = said("" if version == current_version() else "older: ctxstore migrate moves it up", "bright_black")
        table.add_row(said(name), said("–" if version is None else version), said(f"{rows:,}"), note)
    return table


@app.command()
def path(
    versions: Annotated[bool, typer.Option("--versions", help="The folder of the migrations themselves.")] = False,
) -> None:
    """Print the folder of the packaged migrations, for a host's own Alembic."""
    found = migrations.migrations_path()
    typer.echo(found / "versions" if versions else found)
