"""What ``verify`` says: findings by id, and the report they stand in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .damaged import Id

__all__ = ["Finding", "Verification"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be. ``kind``: unreadable, position, pair, revision, projection, ledger, orphan,
    or, between two databases, missing, added, different. ``repaired`` when it is put right. ``id`` is the context's,
    a text where what stands there is no UUID."""

    id: Id
    kind: str
    text: str
    repaired: bool = False


@dataclass(slots=True)
class Verification:
    """What was read and what was found. ``unaccounted`` counts replies that no attempt in the ledger stands for, where
    that may be right: they were talked elsewhere and came with a payload. ``digest`` is the SHA-256 over the hashes of
    all conversations and ledgers: equal digests, equal databases; None when it was not asked for."""

    contexts: int = 0
    messages: int = 0
    attempts: int = 0
    unaccounted: int = 0
    findings: list[Finding] = field(default_factory=list)
    digest: str | None = None
    against: str | None = None
    seconds: float = 0.0

    @property
    def open(self) -> list[Finding]:
        """What was found and is not repaired."""
        return [f for f in self.findings if not f.repaired]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        found = [{"id": f.id, "kind": f.kind, "text": f.text, "repaired": f.repaired} for f in self.findings]
        return {
            "contexts": self.contexts,
            "messages": self.messages,
            "attempts": self.attempts,
            "unaccounted_replies": self.unaccounted,
            "findings": found,
            "digest": self.digest,
            "against": self.against,
            "seconds": round(self.seconds, 3),
        }
