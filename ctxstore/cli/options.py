"""What several commands share: the database they speak to, and how it is opened."""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ..errors import ConfigurationError, StoreError
from ..store import Store

__all__ = ["DEFAULT", "Database", "Identity", "Json", "Owner", "age", "open_store", "url_of"]

_AGE = re.compile(r"(\d{1,5})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}

DEFAULT = "sqlite:///ctxstore.db"

Database = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="CTXSTORE_DB",
        metavar="URL",
        help="The database: a SQLAlchemy URL, or the path of a SQLite file.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
Owner = Annotated[str | None, typer.Option("--owner", help="Only what belongs to this owner.")]
Identity = Annotated[str, typer.Argument(metavar="ID", help="The id of the context, as `ctxstore list` shows it.")]


def url_of(text: str) -> str:
    """``text`` as a database URL; a plain path means a SQLite file.

    Raises:
        ConfigurationError: it has the form of a URL and is none.
    """
    if "://" not in text:
        return f"sqlite:///{text}"
    try:
        make_url(text)
    except ArgumentError as error:
        raise ConfigurationError(f"--db is no database URL: {error}") from error
    return text


def age(text: str) -> dt.timedelta | None:
    """A time span such as 24h, 7d or 2w; None when ``text`` is none."""
    found = _AGE.fullmatch(text)
    return None if found is None else dt.timedelta(hours=int(found[1]) * _HOURS[found[2]])


@contextmanager
def open_store(text: str, *, create: bool = False) -> Iterator[Store]:
    """A store on the database that ``--db`` names.

    A SQLite file that is not there is made only with ``create``.

    Raises:
        StoreError: there is no such file.
    """
    url = url_of(text)
    path = _file(url)
    if path is not None and not create and not path.exists():
        raise StoreError(
            f"there is no database at {path}: name one by --db or CTXSTORE_DB, or run: "
            f"ctxstore db upgrade --db {shlex.quote(str(path))}"
        )
    if path is not None and not path.parent.is_dir():
        raise StoreError(f"there is no folder {path.parent} to make {path.name} in")
    with Store(url) as store:
        yield store


def _file(url: str) -> Path | None:
    """The file of a SQLite URL, None for servers and for memory."""
    parsed = make_url(url)
    name = parsed.database
    if parsed.get_backend_name() != "sqlite" or not name or ":memory:" in name or "mode=memory" in url:
        return None
    return Path(name.removeprefix("file:").split("?")[0])
