"""The command line as a whole: its groups, and what becomes of an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ..errors import CtxstoreError
from . import chat, contexts, db, demo, move, usage
from .text import clean

__all__ = ["run"]

app = typer.Typer(
    name="ctxstore",
    help="Conversations with language models, kept in your own SQL database.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(db.app, name="db")
for group in (contexts, usage, chat, demo, move):
    group.register(app)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("ctxstore")
        except PackageNotFoundError:
            found = "from a folder, not installed"
        typer.echo(f"ctxstore {found}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Conversations with language models, kept in your own SQL database."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; no error leaves it as a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: what would go there goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 -- as long as the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal that cannot show a character still shows the rest
    try:
        app(args=None if argv is None else list(argv), prog_name="ctxstore")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except CtxstoreError as error:
        return _failed(str(error))
    except Exception as error:
        if os.environ.get("CTXSTORE_DEBUG"):
            raise
        return _failed(f"{type(error).__name__}: {error} (CTXSTORE_DEBUG=1 shows the traceback)")
    return 0


def _failed(message: str) -> int:
    typer.echo(f"ctxstore: {clean(' '.join(message.split()))}", err=True)
    return 1
