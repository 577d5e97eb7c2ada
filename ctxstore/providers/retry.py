"""Whether a failed request is sent again, and after how long: a pure function, so that turns and tests share it."""

from __future__ import annotations

import random

from ..errors import ProviderError

__all__ = ["LONGEST_WAIT", "retry_delay"]

FIRST_DELAY = 0.5
LONGEST_DELAY = 8.0
JITTER = 0.25
LONGEST_WAIT = 120.0
"""Seconds past which a provider's wish to wait is no retry any more but a matter for whoever called."""


def retry_delay(error: ProviderError, attempt: int) -> float | None:
    """Seconds to wait before retry ``attempt`` (from 0) of a request that ended in ``error``; None: do not retry.

    What the provider asks for is kept to. Else 0.5 s doubled with each retry up to 8 s, less up to 25 % by chance, so
    that clients that failed together do not return together.
    """
    if not error.retryable:
        return None
    if error.retry_after is not None:
        return error.retry_after if error.retry_after <= LONGEST_WAIT else None
    delay = min(FIRST_DELAY * 2.0 ** min(attempt, 10), LONGEST_DELAY)
    return delay * (1 - JITTER * random.random())
