"""Contexts in a SQL database: ``Store``, and what its verbs give back."""

from __future__ import annotations

from .reading import InFlight, StoredContext, StoredMessage
from .store import Store
from .sums import UsageRow

__all__ = ["InFlight", "Store", "StoredContext", "StoredMessage", "UsageRow"]
