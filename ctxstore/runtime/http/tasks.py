"""HTTP for asyncio. Waits end by cancellation, which the library cleans up after."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from ...providers.base import Provider, WireRequest
from .seam import IDLE_CONNECTIONS, KEPT_OPEN, Watch, before, build, head_of, is_one_of, ssl_context, within

__all__ = ["ASYNC_HTTP", "AsyncBody", "AsyncHTTP"]


class _Loop:
    """The client of one provider on one event loop.

    It is held by an async generator, which the loop closes when it shuts down: so ``asyncio.run`` leaves no open
    connection behind, whether or not anyone called ``aclose()``.
    """

    def __init__(self) -> None:
        import httpx

        limits = httpx.Limits(max_keepalive_connections=IDLE_CONNECTIONS, keepalive_expiry=KEPT_OPEN)
        self.client = httpx.AsyncClient(verify=ssl_context(), limits=limits)
        self.holder = _hold(self.client)


async def _hold(client: Any) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await client.aclose()


def _atrace(watch: Watch) -> Any:
    async def trace(name: str, info: Mapping[str, Any]) -> None:
        watch.see(name)

    return trace


class AsyncHTTP:
    """Opens requests for the asyncio driver."""

    def __init__(self) -> None:
        self._loops: weakref.WeakKeyDictionary[Provider, dict[Any, _Loop]] = weakref.WeakKeyDictionary()

    async def open(self, provider: Provider, request: WireRequest) -> AsyncBody:
        """Send ``request`` and wait for the head of its response. Cancel the wait to end it.

        Raises:
            ConnectionFailedError: there was none.
        """
        client = provider.aclient if provider.aclient is not None else (await self._of(provider)).client
        retries = 0
        while True:
            watch = Watch()
            sent = build(client, request, _atrace(watch))
            try:
                response = await client.send(sent, stream=True)
            except Exception as error:
                if retries <= IDLE_CONNECTIONS and watch.is_stale(error):
                    retries += 1  # the pool drops a connection that failed: at last it must make one
                    continue
                mapped = before(error, provider, request)
                if mapped is error:
                    raise
                raise mapped from error
            sent.extensions["timeout"]["read"] = None  # the body's reads are timed here
            return AsyncBody(provider, request, response)

    async def close(self, provider: Provider) -> None:
        """Close the connections to ``provider`` on the running loop; a later request makes new ones."""
        loop = self._loops.get(provider, {}).pop(asyncio.get_running_loop(), None)
        if loop is not None:
            await loop.holder.aclose()

    async def _of(self, provider: Provider) -> _Loop:
        loops = self._loops.get(provider)
        if loops is None:
            loops = self._loops[provider] = {}
            provider.on_aclose(self.close)
        running = asyncio.get_running_loop()
        found = loops.get(running)
        if found is None:
            for over in [loop for loop in list(loops) if loop.is_closed()]:
                loops.pop(over, None)
            found = loops[running] = _Loop()
            await anext(found.holder)  # from here on the loop knows it
        return found


_closing: set[asyncio.Future[None]] = set()
"""The loop knows its tasks only weakly."""


class AsyncBody:
    """A response whose body is awaited piece by piece."""

    def __init__(self, provider: Provider, request: WireRequest, response: Any) -> None:
        self.response = head_of(response)
        self._provider, self._request, self._response = provider, request, response
        self._pieces = response.aiter_bytes()
        self._began = False

    async def read(self) -> bytes:
        """The next piece, ``b""`` at the end.

        Raises:
            StreamInterruptedError: the body broke off.
        """
        patience = self._request.read_timeout if self._began else self._request.first_byte_timeout
        try:
            async with asyncio.timeout(patience):
                async for data in self._pieces:
                    if data:
                        self._began = True
                        return bytes(data)
            return b""
        except Exception as error:
            mapped = within(error, self._provider, self._began, self._request)
            if mapped is error:
                raise
            raise mapped from error

    async def close(self) -> None:
        """Let the connection go: kept when the body was read to its end, closed otherwise.

        In a task of its own: a cancel scope of anyio (a web framework's, when its client has left) cancels every wait
        within it, and the connection would stay open.
        """
        closing = asyncio.ensure_future(self._close())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)
        await asyncio.shield(closing)

    async def _close(self) -> None:
        try:
            await self._response.aclose()
        except Exception as error:
            if not is_one_of(error, "HTTPError", "OSError"):
                raise


ASYNC_HTTP = AsyncHTTP()
