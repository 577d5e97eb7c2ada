"""A context as one document in a column of the host's row, with what can be counted beside it in plain columns.

``context_token`` names the save: 16 random digits, then the 16 of the save that it stands on. So a document always says
what it may replace, also when it comes with a row that was pickled or merged, and the flush holds it to that with an
UPDATE that finds its row or does not. A table without that column is read again, under lock, in the flush.
"""

from __future__ import annotations

import secrets
import warnings
from functools import cached_property
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState, Mapper, Session, attributes

from .. import clock, jsontext
from ..context import Context
from ..errors import ConfigurationError, StaleContextError
from ..messages import Message
from ..payload import codec
from ..payload.upcasts import current
from ..state import State
from ..store import ledger
from ..store.repository import projections, short
from ..store.store import Store
from ..store.types import MYSQL, JsonText, Uuid, name
from ..usage import COUNTS, Turn
from .keys import place_of
from .options import options_of
from .record import KEY, RecordKeeper, read, translated

__all__ = ["COLUMNS", "TOKEN", "ColumnBinding", "identity_of", "name_record", "values_of"]

TOKEN = "context_token"
VERSION = "context_schema_version"
LARGE = 1_000_000
"""Characters from which on a document on a row is too much to be written at every turn."""

COLUMNS: dict[str, sa.types.TypeEngine[Any]] = {
    "context_data": JsonText(),
    TOKEN: name(32),
    "context_schema_version": sa.Integer(),
    "context_model": name(),
    "context_used": sa.BigInteger(),
    "context_window": sa.BigInteger(),
    "context_message_count": sa.Integer(),
    **{f"context_{count}": sa.BigInteger() for count in COUNTS},
    "context_cost_pico_usd": sa.BigInteger(),
}
"""What ``HasContext`` adds to a table. All of them are nullable: a row without a context has none."""


def values_of(state: State) -> dict[str, Any]:
    """The columns that are written for queries and never read back."""
    return {
        "context_schema_version": current(),
        "context_model": short(state.head.model),
        "context_used": state.context_used,
        "context_window": state.context_window,
        "context_message_count": len(state.messages),
        **{f"context_{k}": v for k, v in zip(COUNTS, state.token_usage.counts(), strict=True)},
        "context_cost_pico_usd": None if state.cost_usd is None else state.cost_pico_usd,
    }


def _next(base: str) -> str:
    return secrets.token_hex(8) + base


class ColumnBinding:
    """How one mapped class keeps its contexts: found out once, when mappers are configured."""

    def __init__(self, mapper: Mapper[Any], *, with_columns: bool) -> None:
        self.mapper = mapper
        self.model: str = mapper.class_.__name__
        self.data, self.column = self._find(getattr(mapper.class_, "__context_column__", None))
        self.text = self._is_text(self.column.type)
        if with_columns and (missing := [key for key in COLUMNS if key not in mapper.column_attrs]):
            raise ConfigurationError(f"{self.model} has HasContext and lacks its columns {', '.join(missing)}")
        self.token = TOKEN if with_columns else None
        self.values = [key for key in COLUMNS if key not in ("context_data", TOKEN)] if with_columns else []
        self._checked: set[str] = set()

    def _find(self, wanted: Any) -> tuple[str, sa.Column[Any]]:
        found = {attr.key: attr.columns[0] for attr in self.mapper.column_attrs}
        for key, column in found.items():
            if wanted in (key, column.key) and isinstance(column, sa.Column):
                return key, column
        if wanted is None:
            raise ConfigurationError(
                f'{self.model} does not name the column of its context: __context_column__ = "..."'
            )
        raise ConfigurationError(
            f"{self.model}.__context_column__ is {wanted!r}, which it does not have; it has {', '.join(sorted(found))}"
        )

    def _is_text(self, kind: Any) -> bool:
        plain = _plain(kind)
        if isinstance(plain, sa.JSON):
            return False
        if not isinstance(plain, sa.String) or isinstance(plain, sa.Enum):
            raise ConfigurationError(
                f"{self.model}.{self.data} is {kind!r}; a context needs a JSON column or a text column"
            )
        if plain.length is not None and plain.length < 65_535:
            raise ConfigurationError(
                f"{self.model}.{self.data} holds {plain.length} characters, too few for a context; make it Text or JSON"
            )
        return True

    # -- statements

    def _here(self, table: Any) -> list[Any]:
        return [c == sa.bindparam(f"ctx_key_{key}", type_=c.type) for key, c in self._keys(table)]

    def _keys(self, table: Any) -> list[tuple[str, sa.ColumnElement[Any]]]:
        """The key of ``table``, by attribute."""
        keys = [c for c in self.mapper.primary_key if c.table is table] or list(table.primary_key.columns)
        return [(self.mapper.get_property_by_column(c).key, c) for c in keys]

    def _key(self, record: Any, row: InstanceState[Any], table: Any) -> dict[str, Any]:
        known = {
            self.mapper.get_property_by_column(c).key: part
            for c, part in zip(self.mapper.primary_key, row.identity or (), strict=False)
        }
        keys = [key for key, _ in self._keys(table)]
        return {f"ctx_key_{key}": known[key] if key in known else getattr(record, key) for key in keys}

    def _update(self, values: dict[Any, Any], *conditions: Any) -> Any:
        """An UPDATE that leaves alone what the host's columns would have set on one."""
        (table,) = {c.table for c in values}
        same = {c: c for c in table.c if c.onupdate is not None}
        return sa.update(table).where(*self._here(table), *conditions).values({**same, **values})

    @cached_property
    def _swap(self) -> tuple[Any, Any]:
        """Stamp the new token where the old one stands: on a row that has one, and on one that has none."""
        column = self.mapper.column_attrs[TOKEN].columns[0]
        new = {column: sa.bindparam("ctx_new", type_=column.type)}
        version = self.mapper.column_attrs[VERSION].columns[0]
        ours = sa.or_(version.is_(None), version <= sa.bindparam("ctx_version", type_=sa.Integer()))
        return (
            self._update(new, column.like(sa.bindparam("ctx_base", type_=sa.String())), ours),
            self._update(new, column.is_(None), ours),
        )

    @cached_property
    def _stored(self) -> Any:
        return sa.select(self.column).where(*self._here(self.column.table)).with_for_update()

    @cached_property
    def _lock(self) -> Any:
        return self._update({self.column: self.column})

    def compare(
        self, connection: sa.Connection, record: Any, row: InstanceState[Any], new: str | None, base: Any
    ) -> None:
        """See that the row in the database is the one that the new document stands on, and lock it.

        Raises:
            StaleContextError: it is another one, or gone.
            SchemaVersionError: a newer program has written it since.
        """
        column = self.column if self.token is None else self.mapper.column_attrs[self.token].columns[0]
        keys = self._key(record, row, column.table)
        if self.token is not None:
            with_token, without = self._swap
            parameters = {
                **keys,
                "ctx_new": new,
                "ctx_version": current(),
                **({"ctx_base": f"{base}%"} if base else {}),
            }
            same = connection.execute(with_token if base else without, parameters).rowcount == 1
            if not same:
                version = self.mapper.column_attrs[VERSION].columns[0]
                held = connection.scalar(sa.select(version).where(*self._here(column.table)), keys)
                if held is not None:
                    codec.check_version(held)
        else:
            if connection.dialect.name == "sqlite":  # a SELECT takes no lock there
                connection.execute(self._lock, keys)
            found = connection.execute(self._stored, keys).first()
            same = found is not None and found[0] == base
        if not same:
            raise StaleContextError(
                f"another writer saved the context of this {self.model} row since it was read here; roll back, take "
                "record.context anew and repeat the turn"
            )

    # -- a row

    def open(self, record: Any, row: InstanceState[Any]) -> RecordKeeper:
        """A live context of what the row holds now."""
        options = options_of(record)
        if self.token is None:
            (raw,), token = read(record, self.data), None
        else:
            raw, token = read(record, self.data, self.token)
        if (session := row.session) is not None:
            self.check(session)
        identity = clock.parse_id(options.id) if options.id is not None else identity_of(self.mapper, row)
        if holds_something(raw):
            place = None
            if row.identity is not None:
                place = place_of(self.mapper.base_mapper.local_table, row.identity)
            document = codec.load(raw, context_id=identity, place=place)
            ctx = Context._from_document(options.provider, document, record=record, **options.context)
        else:
            ctx = Context(options.provider, id=identity or clock.new_id(), record=record, **options.context)
        ctx.state.owner = options.owner
        count = len(ctx.state.messages)
        ctx.state.stands_on(list(range(count)), count, token or "")
        name_record(self.mapper, record, row, ctx.id)
        return ColumnKeeper(self, record, row, ctx, options.store)

    def write(self, connection: sa.Connection, record: Any) -> None:
        """The flush comes to ``record``: hold what is new in it to what it stands on."""
        row: InstanceState[Any] = sa.inspect(record)
        data = row.attrs[self.data].history
        token = row.attrs[self.token].history if self.token is not None else None
        changed = data.has_changes() or (token is not None and token.has_changes())
        if not changed if row.has_identity else not holds_something(row.dict.get(self.data)):
            return
        self.check(connection)
        keeper = row.info.get(KEY)
        if keeper is not None and not keeper.written and row.dict.get(self.data) is keeper.value:
            keeper.flush(connection)
        elif row.has_identity or (token is not None and not row.dict.get(TOKEN)):
            self._by_other_hands(connection, record, row, data, token)

    def _by_other_hands(
        self, connection: sa.Connection, record: Any, row: InstanceState[Any], data: Any, token: Any
    ) -> None:
        """The document came by a merge, with a pickled row, or was assigned by the host."""
        new, base = None, None
        if token is not None and token.has_changes():
            new = row.dict[TOKEN]
            base = new[16:] if new else ""
        elif token is not None:
            held = row.dict.get(TOKEN)
            base = held[:16] if held else ""
            new = _next(base)
            attributes.set_attribute(record, TOKEN, new)
            self._project(record, row.dict.get(self.data))
        elif data.deleted:
            base = data.deleted[0]
        else:
            return  # what stood there was never read: there is nothing to hold it to
        if row.has_identity:
            with translated(None):
                self.compare(connection, record, row, new, base)

    def _project(self, record: Any, raw: Any) -> None:
        values: dict[str, Any] = dict.fromkeys(self.values)
        if holds_something(raw):
            document = codec.load(raw)
            state = State(document.head)
            state.take(document)
            values |= values_of(state)
        for key in self.values:
            attributes.set_attribute(record, key, values[key])

    def check(self, place: Session | sa.Connection) -> None:
        """Warn, once, where the column is a ``TEXT`` of MySQL or MariaDB."""
        dialect = place.dialect if isinstance(place, sa.Connection) else place.get_bind(self.mapper).dialect
        if dialect.name not in MYSQL or dialect.name in self._checked:
            return
        self._checked.add(dialect.name)
        declared = self.column.type.compile(dialect=dialect).upper().split("(")[0].split()[0]
        if self.text and declared in ("TEXT", "TINYTEXT"):
            warnings.warn(
                f"{self.model}.{self.data} is {declared} on {dialect.name}, which ends at 64 KB; make it LONGTEXT: "
                "Text().with_variant(mysql.LONGTEXT(), 'mysql', 'mariadb')",
                stacklevel=2,
            )

    def deleted(self, connection: sa.Connection, record: Any) -> None:
        """The row goes, and its document with it."""


class ColumnKeeper(RecordKeeper):
    """Keeps a live context in a column of its row."""

    def __init__(
        self, binding: ColumnBinding, record: Any, row: InstanceState[Any], ctx: Context, store: Store | None
    ) -> None:
        self.binding = binding
        self.token: str = ctx.state.last_save or ""
        self.base: Any = self.token[:16]
        """What the database must hold for the flush to write: the beginning of its token, or the document itself."""
        self._texts: list[tuple[Message, str]] = []
        self._rows: list[dict[str, Any]] = []
        self._sent: list[dict[str, Any]] = []
        self._large = False
        super().__init__(record, row, binding.data, ctx, store)
        token = row.attrs[TOKEN].history if binding.token is not None else None
        if token is not None and token.has_changes():  # the row came with a save that is not flushed yet
            self.base = self.token[16:]
        if binding.token is None:
            data = row.attrs[binding.data].history
            self.base = data.deleted[0] if data.deleted else self.value

    def _same(self, held: Any, load: bool) -> bool:
        token = self.row.dict.get(TOKEN, self.token) if self.binding.token is not None else self.token
        return (token or "") == self.token and held == self.value

    def _assign(self, turn: Turn) -> None:
        binding, state = self.binding, self.ctx.state
        changes = state.changes()
        unsaved = Turn(turn.id, self.ctx.id, tuple(changes.live), tuple(changes.usage))
        state.head.revision += 1
        try:
            text = self._text()
        except Exception:
            state.head.revision -= 1
            raise
        if len(text) > LARGE and not self._large:
            self._large = True
            warnings.warn(
                f"the context of a {binding.model} row has passed 1 MB, all of which is written at every turn; "
                "HasContextLink keeps a context in ctxstore's tables, where a turn appends",
                stacklevel=2,
            )
        if self.store is not None:
            self._rows += ledger.entry_rows(changes.usage, state.owner, changes.first_position, changes.appended)
        self.token = _next(self.base if binding.token is not None else "")
        self.turns.append(unsaved)
        state.saved(self.token, state.head.revision)
        values = values_of(state)
        for key in binding.values:
            attributes.set_attribute(self.record, key, values[key])
        if binding.token is not None:
            attributes.set_attribute(self.record, TOKEN, self.token)
        attributes.set_attribute(self.record, binding.data, text if binding.text else jsontext.loads(text))
        self.value = self.row.dict[binding.data]  # a type or a validator of the host's may have made another of it

    def _text(self) -> str:
        """The document. Messages are values: the text of each is made once."""
        state, texts = self.ctx.state, self._texts
        same = 0
        for (known, _), message in zip(texts, state.messages, strict=False):
            if known is not message:
                break
            same += 1
        del texts[same:]
        for i, message in enumerate(state.messages[same:], same):
            texts.append((message, codec.dump_message(message, f"messages[{i}]")))
        head = codec.dump_head(state.head, projections(state))
        return f'{head[:-1]},"messages":[{",".join(text for _, text in texts)}]}}'

    def _failed(self, turn: Turn) -> None:
        if self.store is not None:
            self._rows += ledger.entry_rows(turn.usage, self.ctx.state.owner)

    def _write(self, connection: sa.Connection) -> None:
        if self.row.has_identity:
            self.binding.compare(connection, self.record, self.row, self.token, self.base)
        if self._rows:
            ledger.record(connection, self._rows)
            self._sent += self._rows
            self._rows = []
        self.base = self.value if self.binding.token is None else self.token[:16]

    def _unwritten(self) -> None:
        self.base = None if self.binding.token is None else ""
        self._rows, self._sent = self._sent + self._rows, []

    def committed(self) -> None:
        super().committed()
        self._sent.clear()


def holds_something(raw: Any) -> bool:
    """Whether there is a conversation: null and what is empty, also as a text of JSON, are none."""
    return bool(raw) and not (isinstance(raw, str) and raw.strip() in ("", "{}", "[]", '""', "null"))


# -- names


def identity_of(mapper: Mapper[Any], row: InstanceState[Any]) -> UUID | None:
    """The record's own key when that is a single UUIDv7."""
    key = _single_key(mapper, row)
    return clock.parse_id(key) if clock.is_uuid7(key) else None


def _single_key(mapper: Mapper[Any], row: InstanceState[Any]) -> Any:
    if len(mapper.primary_key) != 1:
        return None
    if row.identity is not None:
        return row.identity[0]
    return row.dict.get(mapper.get_property_by_column(mapper.primary_key[0]).key)


def name_record(mapper: Mapper[Any], record: Any, row: InstanceState[Any], identity: UUID) -> None:
    """Give a new record whose single UUID key is empty the id of its context."""
    if row.has_identity or len(mapper.primary_key) != 1 or _single_key(mapper, row) is not None:
        return
    column = mapper.primary_key[0]
    kind = _plain(column.type)
    if isinstance(kind, sa.Uuid | Uuid) and not column.foreign_keys:
        value = str(identity) if isinstance(kind, sa.Uuid) and not kind.as_uuid else identity
        attributes.set_attribute(record, mapper.get_property_by_column(column).key, value)


def _plain(kind: Any) -> Any:
    """The type that a decorator stands before."""
    return kind.impl_instance if isinstance(kind, sa.types.TypeDecorator) and not isinstance(kind, Uuid) else kind
