"""Chat Completions: the form that OpenAI made and that most servers speak."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from .. import jsontext
from ..errors import AuthenticationError, ConfigurationError, ProviderError
from ..usage import Price
from . import catalog
from .base import Decoder, ModelRequest, Provider, WireRequest
from .chat_reply import ChatDecoder
from .chat_request import chat_body
from .dialect import Dialect
from .errors import error_of

__all__ = ["ChatCompletions"]

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_HEADER = re.compile(r"[\t -~]*")
_SECRET = ("key", "auth", "token", "cookie", "secret")


def _is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


def _is_secret(header: str) -> bool:
    return any(word in header for word in _SECRET)


class ChatCompletions(Provider):
    """A server that speaks Chat Completions, as its ``dialect`` says.

    ``key`` is the API key; without it the environment is read when a request is built. It is never stored: not in a
    payload, a repr, a log or an error. ``base_url`` is what comes before ``/chat/completions``. ``client`` and
    ``aclient`` are an ``httpx`` or ``httpx2`` client of the caller's own, used as they are and left open. ``headers``
    are sent with every request. ``name`` is what payloads and the ledger call this server; give it one of its own when
    the base URL leads somewhere else than the class says.

    Timeouts are seconds: to connect, to the first byte of the reply, and between its bytes. ``retry_budget`` is how
    often a failed request is sent again when the context does not say. ``prices`` (USD per million tokens:
    ``{"model": {"input": 3, "output": 15}}``) and ``context_windows`` (tokens) replace the catalogue.

    Raises:
        ConfigurationError: there is no model by default and none was given, the base URL is no HTTP URL, or a header
            cannot be one.
    """

    dialect: Dialect
    modes = ("completions",)

    def __init__(
        self,
        key: str | None = None,
        model: str | None = None,
        base_url: str | None = None,
        client: Any = None,
        aclient: Any = None,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout: float = 5.0,
        first_byte_timeout: float = 600.0,
        read_timeout: float = 120.0,
        retry_budget: int = 0,
        prices: Mapping[str, Mapping[str, Any]] | None = None,
        context_windows: Mapping[str, int] | None = None,
    ) -> None:
        chosen = model or self.dialect.model
        if chosen is None:
            raise ConfigurationError(f"{type(self).__name__} needs model=: its server has no model by default")
        super().__init__(chosen)
        if base_url is not None:  # another server than the dialect's: what the caller calls a parameter is its name
            self.dialect = replace(self.dialect, max_tokens="max_tokens")
        self.name = name or self.dialect.name
        self.base_url = base_url or self.dialect.base_url
        if not _is_http(self.base_url):
            raise ConfigurationError(f"base_url must be an http:// or https:// URL, not {self.base_url!r}")
        self.client, self.aclient = client, aclient
        self.retry_budget = retry_budget
        self.timeouts = (connect_timeout, first_byte_timeout, read_timeout)
        self._key = key
        self._headers = {k.lower(): v for k, v in (headers or {}).items()}
        for header, value in self._headers.items():  # an error of the client library would show the value
            if not _HEADER.fullmatch(header + value):
                raise ConfigurationError(f"the header {header!r} holds characters that no HTTP header can")
        self._prices = None if prices is None else {k: Price.of(v) for k, v in prices.items()}
        self._windows = None if context_windows is None else dict(context_windows)

    def __deepcopy__(self, memo: Any) -> ChatCompletions:
        return self  # shared by the contexts that have it, as their connections are

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: without key, client and connections; where it is taken out, the key is the environment's."""
        headers = {k: v for k, v in self._headers.items() if not _is_secret(k)}
        return {
            **self.__dict__,
            "client": None,
            "aclient": None,
            "_key": None,
            "_headers": headers,
            "_closers": [],
            "_aclosers": [],
        }

    # -- keys

    def _find_key(self) -> str | None:
        """The key of this moment. Raises AuthenticationError when there is none and the server needs one."""
        variable = self.dialect.key_variable
        found = (self._key or (os.environ.get(variable) if variable is not None else None) or "").strip()
        if found and not _HEADER.fullmatch(found):
            raise ConfigurationError(f"{self.name}: the API key holds characters that no HTTP header can")
        if found or variable is None or self._headers.keys() & {"authorization", "api-key", "x-api-key"}:
            return found or None
        if urlsplit(self.base_url).hostname in _LOOPBACK:
            return None
        raise AuthenticationError(
            f"{self.name}: there is no API key: set {variable} or pass {type(self).__name__}(key=...)"
        )

    def _secrets(self) -> list[str]:
        variable = self.dialect.key_variable
        found = [self._key, os.environ.get(variable) if variable is not None else None]
        found += [v for k, v in self._headers.items() if _is_secret(k)]
        return [secret for secret in found if secret]

    # -- the translator

    def build(self, request: ModelRequest) -> WireRequest:
        headers = {"content-type": "application/json", "user-agent": "ctxstore", **self._headers}
        headers.setdefault("accept", "text/event-stream" if request.stream else "application/json")
        key = self._find_key()
        if key is not None:
            headers.setdefault("authorization", f"Bearer {key}")
        connect, first, between = self.timeouts
        return WireRequest(
            method="POST",
            url=self._url("/chat/completions"),
            headers=headers,
            body=jsontext.dumps(chat_body(request, self.dialect, self.name)).encode(),
            connect_timeout=connect,
            first_byte_timeout=first,
            read_timeout=between,
        )

    def _url(self, path: str) -> str:
        parts = urlsplit(self.base_url)  # a base URL may end in a query, such as ?api-version=...
        return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + path, parts.query, ""))

    def decoder(self, request: ModelRequest, headers: Mapping[str, str]) -> Decoder:
        def fail(status: int | None, body: Any) -> ProviderError:
            return error_of(self.name, status, headers, body, self._secrets())

        return ChatDecoder(request, headers, self.dialect, self.name, fail)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return error_of(self.name, status, headers, body, self._secrets())

    # -- the catalogue

    def context_window(self, model: str) -> int | None:
        if self._windows is not None:
            return self._windows.get(model)
        return catalog.window_of(self.dialect.price_id, model)

    def price(self, model: str) -> Price | None:
        if self._prices is not None:
            return self._prices.get(model)
        return catalog.price_of(self.dialect.price_id, model)
