"""Applications on a port of the loopback address, and a model that thinks as long as a test wants."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Run ``app`` by uvicorn in a thread; the address it is at."""
    place = socket.socket()
    place.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    thread.start()
    try:
        until = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < until and thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        place.close()


class Model:
    """A server of Chat Completions that echoes the last message, word by word.

    It begins to answer when ``together`` requests are waiting. ``*forever`` in a prompt keeps it from coming to an end.
    """

    def __init__(self, together: int = 1) -> None:
        self.together, self.waiting, self.given_up = together, 0, 0
        self.all_here: asyncio.Event | None = None
        self.on_all_here: Any = lambda: None
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.complete)

    async def complete(self, request: dict[str, Any]) -> StreamingResponse:
        return StreamingResponse(self.words(request["messages"][-1]["content"]), media_type="text/event-stream")

    async def words(self, prompt: str) -> AsyncGenerator[str, None]:
        self.all_here = self.all_here or asyncio.Event()
        self.waiting += 1
        if self.waiting == self.together:
            self.on_all_here()
            self.all_here.set()
        await asyncio.wait_for(self.all_here.wait(), 30)
        try:
            for word in f"you said {prompt}".split(" "):
                yield self.chunk({"content": f"{word} "})
                await asyncio.sleep(60 if word == "*forever" else 0.01)
        except BaseException:
            self.given_up += 1
            raise
        yield self.chunk({}, "stop")
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        yield f"data: {json.dumps({'id': 'c', 'model': 'echo', 'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

    @staticmethod
    def chunk(delta: dict[str, str], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps({'id': 'c', 'model': 'echo', 'choices': [choice]})}\n\n"
