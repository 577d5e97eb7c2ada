"""Everything ctxstore raises, in one tree.

::

    BaseException
    └── Interrupted                      control flow: ``ctx.interrupt()`` ended the turn
    Exception
    └── CtxstoreError
        ├── ConfigurationError           misuse by the caller's code
        │   ├── InvalidIdError
        │   └── NoSuchToolError
        ├── PayloadError                 a saved conversation that cannot be read or written
        │   ├── SchemaVersionError
        │   ├── UnsupportedValueError
        │   └── TransferError            a file that is no export, or is damaged
        ├── StoreError                   the database and what stands in it
        │   ├── ContextNotFoundError
        │   ├── StaleContextError        carries ``.turn``
        │   ├── ContextLockedError
        │   ├── StoreUnavailableError    retryable
        │   └── DatabaseNotUpgradedError
        ├── ProviderError                the model's server; carries ``.turn``
        │   ├── AuthenticationError
        │   ├── RateLimitError
        │   │   └── QuotaError
        │   ├── ContextWindowExceededError
        │   ├── InvalidRequestError
        │   ├── NotFoundError
        │   ├── ServerError
        │   ├── ConnectionFailedError
        │   └── StreamInterruptedError
        └── ToolLoopError                a turn asked for more tool rounds than its policy allows

The docstring of a class is its default message, so that a bare ``raise`` still tells the reader what to do. Errors of
other libraries never reach a caller bare: they stand in ``__cause__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .usage import Turn

__all__ = [
    "AuthenticationError",
    "ConfigurationError",
    "ConnectionFailedError",
    "ContextLockedError",
    "ContextNotFoundError",
    "ContextWindowExceededError",
    "CtxstoreError",
    "DatabaseNotUpgradedError",
    "Interrupted",
    "InvalidIdError",
    "InvalidRequestError",
    "NoSuchToolError",
    "NotFoundError",
    "PayloadError",
    "ProviderError",
    "QuotaError",
    "RateLimitError",
    "SchemaVersionError",
    "ServerError",
    "StaleContextError",
    "StoreError",
    "StoreUnavailableError",
    "StreamInterruptedError",
    "ToolLoopError",
    "TransferError",
    "UnsupportedValueError",
]


class Interrupted(BaseException):
    """The turn was interrupted; the context stands as it did before the request."""

    turn: Turn | None = None

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class CtxstoreError(Exception):
    """Something ctxstore was asked to do could not be done."""

    turn: Turn | None = None
    """What the turn had produced when it failed: messages that are in no history and the usage that was paid for."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class ConfigurationError(CtxstoreError):
    """ctxstore was set up in a way that cannot work."""


class InvalidIdError(ConfigurationError):
    """An id must be a UUIDv7: a uuid.UUID of version 7, or its text with or without hyphens."""


class NoSuchToolError(ConfigurationError):
    """The model called a tool that this context does not have; pass it in tools=[...]."""


class PayloadError(CtxstoreError):
    """What was given is no saved context."""


class SchemaVersionError(PayloadError):
    """The payload was written in a version that this program cannot read.

    ``found`` is what it says of itself, ``supported`` the versions that can be read, oldest first.
    """

    def __init__(self, message: str | None = None, *, found: object = None, supported: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.found = found
        self.supported = tuple(supported)


class UnsupportedValueError(PayloadError):
    """A value has no form in JSON.

    ``path`` names where it stands, as in ``messages[3].content[0].value.mean``.
    """

    def __init__(self, message: str | None = None, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class TransferError(PayloadError):
    """A file that was to be imported is no export of ctxstore, or is damaged.

    ``line`` is the number of the line, from 1, ``imported`` how many conversations before it are in the store now.
    """

    def __init__(self, message: str | None = None, *, line: int = 0, imported: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.imported = imported


class StoreError(CtxstoreError):
    """The store could not do what it was asked."""


class ContextNotFoundError(StoreError):
    """There is no context with this id, or it belongs to another owner."""


class StaleContextError(StoreError):
    """Another writer saved this context since it was loaded; load it again and repeat the turn.

    ``turn`` holds what this writer had done and paid for, None when it was told before its request was sent.
    """

    def __init__(self, message: str | None = None, *, turn: Turn | None = None) -> None:
        super().__init__(message)
        self.turn = turn


class ContextLockedError(StoreError):
    """Another writer holds the lease on this context.

    ``holder`` names it (host, process and thread), ``until`` is the time at which its lease runs out.
    """

    def __init__(
        self, message: str | None = None, *, holder: str | None = None, until: Any = None, turn: Turn | None = None
    ) -> None:
        super().__init__(message)
        self.holder = holder
        self.until = until
        self.turn = turn


class StoreUnavailableError(StoreError):
    """The database could not be reached or was busy past the configured wait; nothing was changed, try again."""

    retryable = True


class DatabaseNotUpgradedError(StoreError):
    """ctxstore's tables are missing here, or old; run: ctxstore db upgrade --db URL, or call store.upgrade()"""


class ProviderError(CtxstoreError):
    """The provider did not give a reply.

    ``status`` is the HTTP status (None when there was no response), ``body`` the response body as text, ``request_id``
    the provider's own name of the request, ``retry_after`` the seconds it asks to wait, ``retryable`` whether the same
    request may succeed later, ``code`` the provider's error code, ``reply`` what of the reply came before the error.
    """

    retryable = False

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int | None = None,
        body: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
        code: str | None = None,
        turn: Turn | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.request_id = request_id
        self.retry_after = retry_after
        self.code = code
        self.turn = turn
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (status {self.status})" if self.status is not None else text


class AuthenticationError(ProviderError):
    """The provider does not accept the key, or the key may not do this."""


class RateLimitError(ProviderError):
    """Too many requests or tokens in a time; the provider asks to wait."""

    retryable = True


class QuotaError(RateLimitError):
    """The account has no budget left; waiting does not help."""

    retryable = False


class ContextWindowExceededError(ProviderError):
    """The conversation is longer than the model's context window; compact it or use another model."""


class InvalidRequestError(ProviderError):
    """The provider refuses this request as it stands."""


class NotFoundError(ProviderError):
    """The provider knows no such model or address."""


class ServerError(ProviderError):
    """The provider failed on its side."""

    retryable = True


class ConnectionFailedError(ProviderError):
    """There was no connection to the provider, or it broke or timed out before a reply began."""

    retryable = True


class StreamInterruptedError(ProviderError):
    """The reply broke off before its end; what came of it is in ``.turn``."""


class ToolLoopError(CtxstoreError):
    """The model went on asking for tools past the policy's max_rounds; the rounds so far are saved."""
