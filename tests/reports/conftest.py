from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest, store: Any) -> Iterator[Callable[..., Any]]:
    """``do(ctx, "talk", "hi")`` is ``ctx.talk("hi")``, and in a second run of the test ``await ctx.atalk("hi")``."""
    if request.param == "sync":
        yield lambda thing, verb, *args, **options: getattr(thing, verb)(*args, **options)
        return
    with asyncio.Runner() as runner:
        yield lambda thing, verb, *args, **options: runner.run(getattr(thing, "a" + verb)(*args, **options))
        runner.run(store.aclose())
