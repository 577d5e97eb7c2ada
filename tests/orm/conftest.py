"""A host's tables beside ctxstore's own."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from .hosts import LAYOUTS, Base


@pytest.fixture
def host(engine: sa.Engine) -> sa.Engine:
    """An engine of the host's, on a database with its tables and ours."""
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture(params=LAYOUTS, ids=lambda model: model.__name__)
def Model(request: pytest.FixtureRequest) -> Any:
    """A mapped class in each of the layouts."""
    return request.param
