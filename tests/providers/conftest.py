from __future__ import annotations

from collections.abc import Iterator

import pytest

from .wire_server import WireServer


@pytest.fixture
def server() -> Iterator[WireServer]:
    """A server that answers what the test tells it to."""
    made = WireServer()
    yield made
    made.close()
