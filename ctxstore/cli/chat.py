"""``ctxstore chat``: talk to a model in the terminal; every reply is kept."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from ..context import Context
from ..errors import CtxstoreError, Interrupted
from ..providers.base import Provider
from ..store import Store
from .options import DEFAULT, Database, Owner, open_store
from .text import clean, console, count, dollars, said
from .voices import Live

__all__ = ["register"]

HELP = "/usage what it used   /model openai:gpt-5-mini go on with another   /id its id   /quit or Ctrl-D end"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(chat)


def chat(
    model: Annotated[
        str, typer.Option("--model", metavar="PROVIDER:MODEL", help="Who answers, such as openai:gpt-5-mini.")
    ],
    db: Database = DEFAULT,
    identity: Annotated[str | None, typer.Option("--id", metavar="ID", help="Go on with this context.")] = None,
    owner: Owner = None,
    system: Annotated[
        str | None, typer.Option("--system", help="What a new context begins with, as its system message.")
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="Where the provider is, when not at its own address."),
    ] = None,
) -> None:
    """Talk to a model; the conversation is kept and goes on with --id.

    The key comes from the environment, such as OPENAI_API_KEY. Ctrl-C ends a reply, not the program: the conversation
    is then as it was before the question.
    """
    out = console()
    typing = sys.stdin.isatty()
    llm = _provider(model, base_url)
    with open_store(db) as store:
        if identity is None:
            ctx = store.create(llm, owner=owner)
            if system:
                ctx.system(system)
        else:
            ctx = store.load(identity, llm, owner=owner)
            ctx.use(provider=llm, model=llm.model)
            if typing:
                out.print(said(f"{count(len(ctx.messages))} messages so far", "bright_black"))
        if typing:
            out.print(said(HELP, "bright_black"))
        try:
            while (line := _ask(out, typing)) is not None:
                if line.startswith("/"):
                    if line in {"/quit", "/exit"}:
                        break
                    _command(out, ctx, line)
                elif line:
                    _turn(out, ctx, line, typing)
        finally:
            if identity is None and _unused(store, ctx):
                store.delete(ctx.id)
        if typing and ctx.messages:
            out.print(said(f"kept; go on with: ctxstore chat --model {model} --id {ctx.id}", "bright_black"))


def _unused(store: Store, ctx: Context) -> bool:
    """Whether nothing was said in ``ctx``, as when there was no key: it would be an empty line in every list."""
    return all(m.role == "system" for m in ctx.messages) and not store.in_flight(ctx.id)


def _provider(text: str, base_url: str | None = None) -> Provider:
    from .. import providers

    return providers.provider(text, base_url=base_url)


def _ask(out: Console, typing: bool) -> str | None:
    """The next line, None at the end of the input."""
    while True:
        try:
            return (out.input("[bold green]>[/] ", markup=True) if typing else input()).strip()
        except EOFError:
            if typing:
                out.print()
            return None
        except KeyboardInterrupt:
            out.print()
            out.print(said("Ctrl-D or /quit ends the program", "bright_black"))


def _turn(out: Console, ctx: Context, prompt: str, typing: bool) -> None:
    show = Live(out)
    try:
        with _ctrl_c_interrupts(ctx):
            reply = ctx.talk(prompt, stream=show)
    except (Interrupted, KeyboardInterrupt):
        show.end()
        out.print(said("interrupted; the conversation is as it was before the question", "yellow"))
        return
    except CtxstoreError as error:
        show.end()
        if not typing:
            raise
        out.print(said(f"{type(error).__name__}: {error}", "red"))
        return
    show.end()
    if typing and reply.usage is not None:
        used = reply.usage
        out.print(said(f"{count(used.input_tokens)} in, {count(used.output_tokens)} out", "bright_black"))


@contextmanager
def _ctrl_c_interrupts(ctx: Context) -> Iterator[None]:
    """The first Ctrl-C ends the turn in good order, a second one at once."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        # not in this thread: it may stand inside a lock that interrupt() takes
        threading.Thread(target=ctx.interrupt, daemon=True).start()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _command(out: Console, ctx: Context, line: str) -> None:
    name, _, argument = line.partition(" ")
    if name == "/usage":
        used, cost = ctx.token_usage, ctx.cost
        out.print(
            said(
                f"{count(used.input_tokens)} in, {count(used.output_tokens)} out, {count(used.total_tokens)} tokens, "
                f"{dollars(cost.total)}; the conversation is {count(ctx.context_used)} tokens long"
                + (f" of {count(ctx.context_window)}" if ctx.context_window else "")
            )
        )
    elif name == "/id":
        out.print(said(ctx.id))
    elif name == "/model" and argument:
        try:
            llm = _provider(argument.strip())
            ctx.use(provider=llm, model=llm.model)
        except CtxstoreError as error:
            out.print(said(error, "red"))
    else:
        out.print(said(HELP if name == "/help" else f"no such command: {clean(name)}. {HELP}", "bright_black"))
