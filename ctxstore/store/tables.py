"""The tables, in a MetaData of their own. Every name, type and constraint is spelled out, as in the migrations.

``ctxstore_contexts``   one row a conversation: its head as a payload, and projections for queries
``ctxstore_messages``   its messages, appended; a message that left the live window has ``retired_at_revision``
``ctxstore_in_flight``  prompts that were sent and have no reply yet
``ctxstore_usage``      the ledger: one row an attempt at a provider, append-only, kept when a context is deleted

There are no foreign keys: a deletion is explicit, and every table partitions or shards by context id as it stands.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ..usage import COUNTS
from .types import JsonText, UtcDateTime, Uuid, long_text, name

__all__ = ["PREFIX", "TOKEN_LENGTH", "VERSION_TABLE", "contexts", "in_flight", "messages", "metadata", "usage"]

PREFIX = "ctxstore_"
VERSION_TABLE = "ctxstore_alembic_version"
TOKEN_LENGTH = 32
"""Characters of ``last_save``, the random token of a save."""

metadata = sa.MetaData()

_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}


def _counts() -> list[sa.Column[Any]]:
    return [sa.Column(count, sa.BigInteger(), nullable=True) for count in COUNTS]


contexts = sa.Table(
    "ctxstore_contexts",
    metadata,
    sa.Column("id", Uuid(), nullable=False),
    sa.Column("schema_version", sa.Integer(), nullable=False),
    sa.Column("revision", sa.Integer(), nullable=False),
    sa.Column("last_save", name(TOKEN_LENGTH), nullable=False),
    sa.Column("next_position", sa.Integer(), nullable=False),
    sa.Column("owner", name(), nullable=True),
    sa.Column("title", name(), nullable=True),
    sa.Column("provider", name(), nullable=True),
    sa.Column("model", name(), nullable=True),
    sa.Column("mode", name(), nullable=True),
    sa.Column("compacted", sa.Boolean(), nullable=False),
    sa.Column("message_count", sa.Integer(), nullable=False),
    sa.Column("context_used", sa.BigInteger(), nullable=True),
    sa.Column("context_window", sa.BigInteger(), nullable=True),
    *_counts(),
    sa.Column("cost_pico_usd", sa.BigInteger(), nullable=True),
    sa.Column("unpriced", sa.Integer(), nullable=False),
    sa.Column("forked_from", Uuid(), nullable=True),
    sa.Column("forked_at", sa.Integer(), nullable=True),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("updated_at", UtcDateTime(), nullable=False),
    sa.Column("archived_at", UtcDateTime(), nullable=True),
    sa.Column("locked_by", name(), nullable=True),
    sa.Column("locked_until", UtcDateTime(), nullable=True),
    sa.Column("lease_epoch", sa.Integer(), nullable=False),
    sa.Column("payload", JsonText(), nullable=False),
    sa.PrimaryKeyConstraint("id", name="pk_ctxstore_contexts"),
    sa.Index("ix_ctxstore_contexts_owner_updated_at_id", "owner", "updated_at", "id"),
    sa.Index("ix_ctxstore_contexts_updated_at_id", "updated_at", "id"),
    **_OPTIONS,
)

messages = sa.Table(
    "ctxstore_messages",
    metadata,
    sa.Column("context_id", Uuid(), nullable=False),
    sa.Column("position", sa.Integer(), nullable=False, autoincrement=False),
    sa.Column("schema_version", sa.Integer(), nullable=False),
    sa.Column("id", Uuid(), nullable=False),
    sa.Column("role", name(), nullable=False),
    sa.Column("retired_at_revision", sa.Integer(), nullable=True),
    sa.Column("created_at", UtcDateTime(), nullable=True),
    sa.Column("provider", name(), nullable=True),
    sa.Column("model", name(), nullable=True),
    sa.Column("input_tokens", sa.BigInteger(), nullable=True),
    sa.Column("output_tokens", sa.BigInteger(), nullable=True),
    sa.Column("total_tokens", sa.BigInteger(), nullable=True),
    sa.Column("payload", JsonText(), nullable=False),
    sa.Column("text", long_text(), nullable=False),
    sa.PrimaryKeyConstraint("context_id", "position", name="pk_ctxstore_messages"),
    sa.Index("ix_ctxstore_messages_live", "context_id", "retired_at_revision", "position"),
    sa.Index("ix_ctxstore_messages_id", "context_id", "id"),
    **_OPTIONS,
)

in_flight = sa.Table(
    "ctxstore_in_flight",
    metadata,
    sa.Column("context_id", Uuid(), nullable=False),
    sa.Column("turn_id", Uuid(), nullable=False),
    sa.Column("base_revision", sa.Integer(), nullable=False),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("payload", JsonText(), nullable=False),
    sa.PrimaryKeyConstraint("context_id", "turn_id", name="pk_ctxstore_in_flight"),
    **_OPTIONS,
)

usage = sa.Table(
    "ctxstore_usage",
    metadata,
    sa.Column("context_id", Uuid(), nullable=False),
    sa.Column("id", Uuid(), nullable=False),
    sa.Column("turn_id", Uuid(), nullable=False),
    sa.Column("attempt", sa.Integer(), nullable=False),
    sa.Column("kind", name(16), nullable=False),
    sa.Column("outcome", name(16), nullable=False),
    sa.Column("owner", name(), nullable=True),
    sa.Column("provider", name(), nullable=False),
    sa.Column("requested_model", name(), nullable=True),
    sa.Column("model", name(), nullable=True),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("slot", sa.Integer(), nullable=False),
    sa.Column("position", sa.Integer(), nullable=True),
    *_counts(),
    sa.Column("usage_raw", JsonText(), nullable=True),
    sa.Column("cost_pico_usd", sa.BigInteger(), nullable=True),
    sa.Column("price", JsonText(), nullable=True),
    sa.Column("finish_reason", long_text(), nullable=True),
    sa.Column("error", long_text(), nullable=True),
    sa.Column("response_id", long_text(), nullable=True),
    sa.Column("request_id", long_text(), nullable=True),
    sa.Column("latency_ms", sa.BigInteger(), nullable=True),
    sa.Column("ttft_ms", sa.BigInteger(), nullable=True),
    sa.PrimaryKeyConstraint("context_id", "id", name="pk_ctxstore_usage"),
    sa.Index("ix_ctxstore_usage_slot", "slot"),
    sa.Index("ix_ctxstore_usage_owner_slot", "owner", "slot"),
    **_OPTIONS,
)
