"""HTTP, sync and async: the only place that knows the client library.

Clients are made when first needed, kept with their provider, and closed with it; a client of the caller's own is used
as it is, ``httpx`` or ``httpx2`` alike, and left open. Errors of the library are told apart by their class names, which
both share, and never leave this package bare.
"""

from __future__ import annotations

from .tasks import ASYNC_HTTP, AsyncBody, AsyncHTTP
from .threads import SYNC_HTTP, Cancel, SyncBody, SyncHTTP

__all__ = ["ASYNC_HTTP", "SYNC_HTTP", "AsyncBody", "AsyncHTTP", "Cancel", "SyncBody", "SyncHTTP"]
