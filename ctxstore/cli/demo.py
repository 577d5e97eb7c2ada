"""``ctxstore demo``: a conversation that outlives its process, with scripted replies. No key, no network.

Everything but the replies is real: the turns, the tool, the database, the second process, the sums.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from ..context import Context
from ..errors import StoreError
from ..policy import ToolPolicy
from ..store import Store
from ..testing import ScriptedProvider
from ..tools import tool
from .text import console, count, dollars, said
from .usage import print_usage
from .voices import Live, Voice, print_message

__all__ = ["register"]

PRICES: dict[str, dict[str, float]] = {
    "scripted-small": {"input": 3, "output": 15, "cache_read": 0.3},
    "scripted-large": {"input": 15, "output": 75},
}
"""USD per million tokens: made up, like the replies."""

FIRST = (
    {
        "reasoning": "Stock is in the shop's system; look, do not guess.",
        "tool_calls": [{"id": "call_1", "name": "stock", "arguments": {"product": "teapot", "colour": "blue"}}],
        "usage": {"input_tokens": 1412, "output_tokens": 41, "reasoning_tokens": 22},
    },
    {
        "text": "Yes: three blue teapots are left, on shelf B4.",
        "usage": {"input_tokens": 1489, "output_tokens": 16, "cache_read_tokens": 1408},
    },
)
SECOND = (
    {
        "text": "For the blue teapot: three were left on shelf B4 when I looked. Shall I put one aside?",
        "usage": {"input_tokens": 1532, "output_tokens": 24, "cache_read_tokens": 1472},
    },
)
LARGE = (
    {
        "text": "Dear Ms Okafor, your blue teapot is waiting on shelf B4. It would like to be collected before Friday.",
        "usage": {"input_tokens": 1574, "output_tokens": 31},
    },
)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(demo)


def demo(
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="FILE", help="Keep the database in this new file, to look at it afterwards."),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Do not type at a person's pace.")] = False,
    go_on: Annotated[str | None, typer.Option("--go-on", hidden=True)] = None,
) -> None:
    """Talk, stop, go on in a second process, and see what it used. No key, no network: the replies are scripted."""
    out = console()
    pace = 0.0 if fast or not out.is_terminal else 0.04
    if go_on is not None and keep is not None:
        _second(out, keep, go_on, pace)
    elif keep is not None:
        if keep.exists():
            raise StoreError(f"{keep} is there already: --keep takes the name of a new file")
        _first(out, keep, pace)
        out.print(said(f"Look at it: ctxstore list --db {keep}", "bright_black"))
    else:
        with tempfile.TemporaryDirectory(prefix="ctxstore-demo-") as folder:
            _first(out, Path(folder) / "demo.db", pace)
        out.print(said("Look at the tables yourself: ctxstore demo --keep demo.db", "bright_black"))


@tool
def stock(product: str, colour: str) -> dict[str, Any]:
    """How many of a product are left, and where."""
    return {"left": 3, "shelf": "B4"}


def _first(out: Console, path: Path, pace: float) -> None:
    out.print(
        Panel(
            Text.assemble(
                ("A conversation that outlives its process.\n", "bold"),
                "No key, no network: the replies are scripted. "
                "The rest is real: the turns, the tool, the database, the processes.",
            ),
            title="ctxstore",
            title_align="left",
            border_style="blue",
            box=box.ROUNDED,
        )
    )
    with Store(f"sqlite:///{path}") as store:
        store.upgrade()
        _act(out, 1, f"process {os.getpid()} talks, and calls a tool")
        policy = ToolPolicy(allow=["stock"])
        llm = ScriptedProvider(FIRST, model="scripted-small", prices=PRICES)
        ctx = store.create(llm, owner="shop", tools=[stock], tool_policy=policy, metadata={"customer": "Ms Okafor"})
        ctx.system("You help in a tea shop. Be brief.")
        print_message(out, ctx.messages[0])
        _turn(out, ctx, "Are there blue teapots left?", pace)
        _saved(out, ctx)
    out.print(said(f"{' ' * 12}process {os.getpid()} forgets all about it", "bright_black"))
    arguments = ["demo", "--keep", str(path), "--go-on", str(ctx.id), *([] if pace else ["--fast"])]
    environment = {**os.environ, "COLUMNS": str(out.width)}
    if out.is_terminal:
        environment["FORCE_COLOR"] = "1"
    code = subprocess.run([sys.executable, "-m", "ctxstore", *arguments], env=environment).returncode
    if code:
        raise StoreError(f"the second process ended with exit code {code}")
    with Store(f"sqlite:///{path}") as store:
        _act(out, 3, "what it used: one SELECT over plain columns, no conversation is read")
        out.print()
        print_usage(out, store.usage(by=("model",)), ("model",))
        out.print()


def _second(out: Console, path: Path, identity: str, pace: float) -> None:
    _act(out, 2, f"process {os.getpid()} knows the id and nothing else")
    with Store(f"sqlite:///{path}") as store:
        llm = ScriptedProvider(SECOND, model="scripted-small", prices=PRICES)
        ctx = store.load(identity, llm, tools=[stock])
        out.print(said(f"{' ' * 12}loaded: {len(ctx.messages)} messages, {ctx.metadata}", "bright_black"))
        _turn(out, ctx, "I was away. What did I come for?", pace)
        large = ScriptedProvider(LARGE, model="scripted-large", prices=PRICES)
        ctx.use(provider=large, model=large.model)
        out.print(said(f"{' ' * 12}another model goes on: {ctx.model}", "bright_black"))
        _turn(out, ctx, "Put one aside, and write a note to me.", pace)
        _saved(out, ctx)


def _act(out: Console, number: int, title: str) -> None:
    out.print()
    out.print(
        Rule(Text.assemble((f" {number} ", "bold white on blue"), (f" {title}", "bold")), align="left", style="blue")
    )


def _turn(out: Console, ctx: Context, prompt: str, pace: float) -> None:
    with Voice(out, "user") as voice:
        voice.write(prompt)
    show = Live(out, pace)
    ctx.talk(prompt, stream=show)
    show.end()


def _saved(out: Console, ctx: Context) -> None:
    used = ctx.token_usage.total_tokens
    line = f"saved: {len(ctx.messages)} messages, {count(used)} tokens, {dollars(ctx.cost.total)}"
    out.print(Text(" " * 12).append("✔ ", "green").append(line, "bright_black"), soft_wrap=True)
