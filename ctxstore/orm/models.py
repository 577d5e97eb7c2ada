"""The mixins, and the flush that comes to the rows of their classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import InstanceState, Mapped, Mapper, mapped_column

from ..context import Context
from ..store.types import Uuid
from .column import COLUMNS, ColumnBinding
from .link import LINK, LinkBinding
from .record import KEY, RecordKeeper

__all__ = ["HasContext", "HasContextColumn", "HasContextLink"]


class _Binding(Protocol):
    def open(self, record: Any, row: InstanceState[Any]) -> RecordKeeper: ...
    def write(self, connection: sa.Connection, record: Any) -> None: ...
    def deleted(self, connection: sa.Connection, record: Any) -> None: ...


class _HasContext:
    """What the three mixins have in common: the one public name that they add, and the host's hook."""

    def context_options(self) -> Mapping[str, Any]:
        """The host's: a mapping with ``provider`` and whatever else ``Context`` takes, with ``owner`` and ``store``.

        ``store`` sends the usage to its ledger, in the host's transaction: it must be a store of the same database, and
        the flush refuses another with a ConfigurationError. The host may give a mapping on the class instead, whose
        values are names on the record or functions of it.
        """
        return {}

    @property
    def context(self) -> Context:
        """The live conversation of this row. Reading it writes nothing; every turn marks the row as changed.

        Raises:
            ConfigurationError: ``context_options`` gives no provider, or the columns are not loaded and cannot be here.
            SchemaVersionError: a newer program wrote what stands in the row.
            PayloadError: what stands there is no context.
        """
        row: InstanceState[Any] = sa.inspect(self)
        keeper: RecordKeeper | None = row.info.get(KEY)
        if keeper is None or not keeper.current(load=True):
            keeper = row.info[KEY] = _binding(row.mapper).open(self, row)
        return keeper.ctx


class HasContextColumn(_HasContext):
    """A context in a column that the host's table has already: ``__context_column__`` names the attribute.

    A JSON column gets the document, a text column its text. Works on every kind of declarative base.
    """

    __context_column__: ClassVar[str]


class HasContext(HasContextColumn):
    """Adds the columns of a context to the host's table.

    ``context_data`` holds the document and ``context_token`` names its last save; the others are for queries and are
    never read back: ``context_used``, ``context_window``, ``context_model``, ``context_message_count``, the token sums
    (``context_input_tokens`` ...), ``context_cost_pico_usd`` and ``context_schema_version``. With
    ``__context_deferred__ = True`` the document is loaded when it is first used and lists do not pay for it.
    """

    __context_column__: ClassVar[str] = "context_data"
    __context_deferred__: ClassVar[bool] = False

    if TYPE_CHECKING:
        context_data: Mapped[str | None]
        context_token: Mapped[str | None]
        context_schema_version: Mapped[int | None]
        context_model: Mapped[str | None]
        context_used: Mapped[int | None]
        context_window: Mapped[int | None]
        context_message_count: Mapped[int | None]
        context_input_tokens: Mapped[int | None]
        context_output_tokens: Mapped[int | None]
        context_reasoning_tokens: Mapped[int | None]
        context_input_audio_tokens: Mapped[int | None]
        context_output_audio_tokens: Mapped[int | None]
        context_input_image_tokens: Mapped[int | None]
        context_cache_read_tokens: Mapped[int | None]
        context_cache_write_tokens: Mapped[int | None]
        context_cache_write_1h_tokens: Mapped[int | None]
        context_total_tokens: Mapped[int | None]
        context_cost_pico_usd: Mapped[int | None]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        deferred = {"context_data"} if cls.__context_deferred__ else set()
        _declare(cls, {key: (kind, key in deferred) for key, kind in COLUMNS.items()})
        super().__init_subclass__(**kwargs)


class HasContextLink(_HasContext):
    """Adds ``context_id``, which points to ctxstore's own tables in the same database.

    There a turn appends rows instead of writing the document anew. ``ctxstore db upgrade`` makes the tables.
    """

    if TYPE_CHECKING:
        context_id: Mapped[UUID | None]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        _declare(cls, {LINK: (Uuid(), False)})
        super().__init_subclass__(**kwargs)


def _declare(cls: type, columns: Mapping[str, tuple[Any, bool]]) -> None:
    """Declare the columns on the first mapped class of a hierarchy, as if it had done so itself.

    Mapped attributes of a mixin do not fit on a base of dataclasses, and on SQLModel not at all; attributes of the
    class itself, not annotated, do on all of them.
    """
    own = cls.__dict__
    declares = any(hasattr(cls, name) for name in ("_sa_registry", "registry", "__tablename__", "__table__"))
    if not declares or own.get("__abstract__"):
        return
    options = own.get("__mapper_args__")
    concrete = isinstance(options, Mapping) and options.get("concrete")
    first = next(iter(columns))
    if not concrete and any(first in base.__dict__ for base in cls.__mro__[1:]):
        return
    table = own.get("__table__")
    for key, (kind, deferred) in columns.items():
        if key not in own and (table is None or key not in table.c):
            type.__setattr__(cls, key, mapped_column(key, kind, nullable=True, deferred=deferred))


# -- what SQLAlchemy tells


def _binding(mapper: Mapper[Any]) -> _Binding:
    found: _Binding = mapper.class_manager.info[KEY]
    return found


@event.listens_for(_HasContext, "mapper_configured", propagate=True)
def _configured(mapper: Mapper[Any], cls: type[Any]) -> None:
    if issubclass(cls, HasContextLink):
        mapper.class_manager.info[KEY] = LinkBinding(mapper)
    else:
        mapper.class_manager.info[KEY] = ColumnBinding(mapper, with_columns=issubclass(cls, HasContext))


@event.listens_for(_HasContext, "before_insert", propagate=True)
@event.listens_for(_HasContext, "before_update", propagate=True)
def _written(mapper: Mapper[Any], connection: sa.Connection, record: Any) -> None:
    _binding(mapper).write(connection, record)


@event.listens_for(_HasContext, "before_delete", propagate=True)
def _deleted(mapper: Mapper[Any], connection: sa.Connection, record: Any) -> None:
    _binding(mapper).deleted(connection, record)
