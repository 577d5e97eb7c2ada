"""The first tables.

Revision: ctxstore_0001. MySQL and MariaDB commit after each statement, so every step asks first whether it was done:
an upgrade that was killed half way is finished by the next one.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import mysql, postgresql

revision = "ctxstore_0001"
down_revision = None
branch_labels = ("ctxstore",)
depends_on = None

_MYSQL = ("mysql", "mariadb")
_UTF8 = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_OPTIONS = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}
_COUNTS = (
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "input_audio_tokens",
    "output_audio_tokens",
    "input_image_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "total_tokens",
)
_INDEXES = (
    ("ix_ctxstore_contexts_owner_updated_at_id", "ctxstore_contexts", ["owner", "updated_at", "id"]),
    ("ix_ctxstore_contexts_updated_at_id", "ctxstore_contexts", ["updated_at", "id"]),
    ("ix_ctxstore_messages_live", "ctxstore_messages", ["context_id", "retired_at_revision", "position"]),
    ("ix_ctxstore_messages_id", "ctxstore_messages", ["context_id", "id"]),
    ("ix_ctxstore_usage_slot", "ctxstore_usage", ["slot"]),
    ("ix_ctxstore_usage_owner_slot", "ctxstore_usage", ["owner", "slot"]),
)


def _uuid() -> Any:
    return sa.CHAR(36).with_variant(mysql.CHAR(36, **_UTF8), *_MYSQL).with_variant(postgresql.UUID(), "postgresql")


def _name(length: int = 191) -> Any:
    return sa.String(length).with_variant(mysql.VARCHAR(length, **_UTF8), *_MYSQL)


def _text() -> Any:
    return sa.Text().with_variant(mysql.LONGTEXT(**_UTF8), *_MYSQL)


def _json() -> Any:
    return _text().with_variant(postgresql.JSON(), "postgresql")


def _time() -> Any:
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *_MYSQL)


def _counts() -> list[sa.Column[Any]]:
    return [sa.Column(count, sa.BigInteger(), nullable=True) for count in _COUNTS]


def _create(table: str, *columns: Any) -> None:
    if context.is_offline_mode() or not sa.inspect(op.get_bind()).has_table(table):
        op.create_table(table, *columns, **_OPTIONS)


def _index(index: str, table: str, columns: list[str]) -> None:
    there = [] if context.is_offline_mode() else sa.inspect(op.get_bind()).get_indexes(table)
    if index not in {found["name"] for found in there}:
        op.create_index(index, table, columns, unique=False)


# Views, for people who ask in SQL. A later migration that changes a column they name drops them first and makes them
# again. Dollars are exact decimals on PostgreSQL, MySQL and MariaDB, where sums of integers are; SQLite has no decimals
# and stops at a sum of 2^63 (9.2 million USD), so it adds in two parts and gives a float.


def _per_dialect(**sql: str) -> str:
    name = op.get_context().dialect.name
    return sql["mysql" if name in _MYSQL else name]


def _whole(expression: str) -> str:
    kind = _per_dialect(sqlite="INTEGER", postgresql="BIGINT", mysql="SIGNED")
    return f"CAST({expression} AS {kind})"


def _dollars() -> str:
    exact = "cost_pico_usd * 0.000000000001"
    return _per_dialect(sqlite="cost_pico_usd / 1e12", postgresql=exact, mysql=exact)


def _dollars_sum() -> str:
    exact = "SUM(cost_pico_usd) * 0.000000000001"
    parts = "(SUM(cost_pico_usd >> 20) * 1048576.0 + SUM(cost_pico_usd & 1048575)) / 1e12"
    return _per_dialect(sqlite=parts, postgresql=exact, mysql=exact)


def _usage_daily() -> str:
    day = _per_dialect(
        sqlite="date(slot / 96 * 86400, 'unixepoch')",
        postgresql="DATE '1970-01-01' + slot / 96",
        mysql="DATE_ADD(DATE '1970-01-01', INTERVAL slot DIV 96 DAY)",
    )
    counts = ", ".join(f"{_whole(f'COALESCE(SUM({count}), 0)')} AS {count}" for count in _COUNTS)
    replied = "outcome IN ('ok', 'lost')"
    silent = "input_tokens IS NULL AND output_tokens IS NULL AND total_tokens IS NULL"
    return f"""
        SELECT {day} AS day, owner, provider, model, kind,
            COUNT(CASE WHEN {replied} THEN 1 END) AS requests,
            COUNT(CASE WHEN NOT {replied} THEN 1 END) AS errors,
            COUNT(DISTINCT context_id) AS contexts,
            {counts},
            COUNT(CASE WHEN {replied} AND {silent} THEN 1 END) AS unknown_usage,
            {_dollars_sum()} AS cost_usd,
            COUNT(CASE WHEN {replied} AND cost_pico_usd IS NULL THEN 1 END) AS unpriced
        FROM ctxstore_usage
        GROUP BY {day}, owner, provider, model, kind"""


def _context_summary() -> str:
    return f"""
        SELECT id, owner, title, provider, model, mode, message_count, compacted, context_used, context_window,
            {", ".join(_COUNTS)}, {_dollars()} AS cost_usd, unpriced, forked_from, forked_at,
            created_at, updated_at, archived_at
        FROM ctxstore_contexts"""


def _messages_text() -> str:
    return """
        SELECT m.context_id, m.position, m.id, c.owner, m.role, m.text, m.created_at,
            CASE WHEN m.retired_at_revision IS NULL THEN 1 ELSE 0 END AS live,
            m.provider, m.model, m.input_tokens, m.output_tokens, m.total_tokens
        FROM ctxstore_messages m JOIN ctxstore_contexts c ON c.id = m.context_id"""


_VIEWS = {
    "ctxstore_usage_daily": _usage_daily,
    "ctxstore_context_summary": _context_summary,
    "ctxstore_messages_text": _messages_text,
}


def _view(name: str, query: str) -> None:
    # of whoever asks, on MySQL: a view of its maker's cannot be restored where there is no such user
    create = _per_dialect(
        sqlite="CREATE VIEW IF NOT EXISTS",
        postgresql="CREATE OR REPLACE VIEW",
        mysql="CREATE OR REPLACE SQL SECURITY INVOKER VIEW",
    )
    op.execute(f"{create} {name} AS{query}")


def upgrade() -> None:
    _create(
        "ctxstore_contexts",
        sa.Column("id", _uuid(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("last_save", _name(32), nullable=False),
        sa.Column("next_position", sa.Integer(), nullable=False),
        sa.Column("owner", _name(), nullable=True),
        sa.Column("title", _name(), nullable=True),
        sa.Column("provider", _name(), nullable=True),
        sa.Column("model", _name(), nullable=True),
        sa.Column("mode", _name(), nullable=True),
        sa.Column("compacted", sa.Boolean(), nullable=False),
        sa.Column("message_count", sa.Integer(), nullable=False),
        sa.Column("context_used", sa.BigInteger(), nullable=True),
        sa.Column("context_window", sa.BigInteger(), nullable=True),
        *_counts(),
        sa.Column("cost_pico_usd", sa.BigInteger(), nullable=True),
        sa.Column("unpriced", sa.Integer(), nullable=False),
        sa.Column("forked_from", _uuid(), nullable=True),
        sa.Column("forked_at", sa.Integer(), nullable=True),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("updated_at", _time(), nullable=False),
        sa.Column("archived_at", _time(), nullable=True),
        sa.Column("locked_by", _name(), nullable=True),
        sa.Column("locked_until", _time(), nullable=True),
        sa.Column("lease_epoch", sa.Integer(), nullable=False),
        sa.Column("payload", _json(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ctxstore_contexts"),
    )
    _create(
        "ctxstore_messages",
        sa.Column("context_id", _uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("id", _uuid(), nullable=False),
        sa.Column("role", _name(), nullable=False),
        sa.Column("retired_at_revision", sa.Integer(), nullable=True),
        sa.Column("created_at", _time(), nullable=True),
        sa.Column("provider", _name(), nullable=True),
        sa.Column("model", _name(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("total_tokens", sa.BigInteger(), nullable=True),
        sa.Column("payload", _json(), nullable=False),
        sa.Column("text", _text(), nullable=False),
        sa.PrimaryKeyConstraint("context_id", "position", name="pk_ctxstore_messages"),
    )
    _create(
        "ctxstore_in_flight",
        sa.Column("context_id", _uuid(), nullable=False),
        sa.Column("turn_id", _uuid(), nullable=False),
        sa.Column("base_revision", sa.Integer(), nullable=False),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("payload", _json(), nullable=False),
        sa.PrimaryKeyConstraint("context_id", "turn_id", name="pk_ctxstore_in_flight"),
    )
    _create(
        "ctxstore_usage",
        sa.Column("context_id", _uuid(), nullable=False),
        sa.Column("id", _uuid(), nullable=False),
        sa.Column("turn_id", _uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", _name(16), nullable=False),
        sa.Column("outcome", _name(16), nullable=False),
        sa.Column("owner", _name(), nullable=True),
        sa.Column("provider", _name(), nullable=False),
        sa.Column("requested_model", _name(), nullable=True),
        sa.Column("model", _name(), nullable=True),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=True),
        *_counts(),
        sa.Column("usage_raw", _json(), nullable=True),
        sa.Column("cost_pico_usd", sa.BigInteger(), nullable=True),
        sa.Column("price", _json(), nullable=True),
        sa.Column("finish_reason", _text(), nullable=True),
        sa.Column("error", _text(), nullable=True),
        sa.Column("response_id", _text(), nullable=True),
        sa.Column("request_id", _text(), nullable=True),
        sa.Column("latency_ms", sa.BigInteger(), nullable=True),
        sa.Column("ttft_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("context_id", "id", name="pk_ctxstore_usage"),
    )
    for index in _INDEXES:
        _index(*index)
    for name, query in _VIEWS.items():
        _view(name, query())


def downgrade() -> None:
    for view in reversed(_VIEWS):
        op.execute(f"DROP VIEW IF EXISTS {view}")
    for table in ("ctxstore_usage", "ctxstore_in_flight", "ctxstore_messages", "ctxstore_contexts"):
        op.drop_table(table, if_exists=True)
