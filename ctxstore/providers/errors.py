"""What a response that is no reply means: from its status and its body, since neither alone tells.

Providers disagree: a wrong key is a 400 at one, a prompt that is too long has no common code, an account without
budget is a 429 like a burst, and an error can stand inside a stream that began with 200.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from .. import clock
from ..errors import (
    AuthenticationError,
    ContextWindowExceededError,
    InvalidRequestError,
    NotFoundError,
    ProviderError,
    QuotaError,
    RateLimitError,
    ServerError,
)

__all__ = ["error_of", "request_id_of", "retry_after_of", "scrub"]

_LONGEST_BODY = 64 * 1024
_LONGEST_MESSAGE = 1000

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (?:window|size|length)"
    r"|prompt is too long|prompt too long|input token count.{0,40}exceeds|model_max_prompt_tokens_exceeded"
    r"|exceeds the (?:model's |maximum )?context",
    re.I,
)
_WRONG_KEY = re.compile(
    r"api[_ -]?key.{0,40}(?:invalid|incorrect|expired|not valid)|(?:invalid|incorrect|missing).{0,20}api[_ -]?key", re.I
)
_NO_BUDGET = re.compile(r"insufficient[_ ](?:quota|balance|credits|funds)|(?-i:PerDay)", re.I)
_PLAN = "exceeded your current quota"  # said of an empty account, and by one provider of a busy minute too
_NO_MODEL = {"model_not_found", "invalid_model", "unknown_model"}
_OVER_LIMIT = re.compile(r"Limit:? (\d+).{0,60}Requested:? (\d+)", re.S)

_STATUS_OF_WORD = (  # for errors in a stream, which have a word and often no number; the first that is found in it
    ("insufficient_quota", 402),
    ("rate_limit", 429),
    ("too_many_requests", 429),
    ("resource_exhausted", 429),
    ("authentication", 401),
    ("permission", 403),
    ("not_found", 404),
    ("overloaded", 503),
    ("unavailable", 503),
    ("invalid_request", 400),
    ("tool_use_failed", 400),
    ("context_length", 400),
    ("server_error", 500),
    ("internal", 500),
)


def error_of(
    provider: str,
    status: int | None,
    headers: Mapping[str, str],
    body: bytes | str | Mapping[str, Any],
    secrets: Iterable[str] = (),
) -> ProviderError:
    """The error for a response with ``status`` and ``body``, or for the error object in a stream (status None).

    ``headers`` have names in lower case. ``secrets`` are taken out of everything that it says.
    """
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body if isinstance(body, str) else None
    parsed = _parse(text) if text is not None else body
    text = json.dumps(body, ensure_ascii=False) if text is None else text.strip()
    message, code, kind, number = _fields(parsed)
    if status is None or 200 <= status < 300:
        words = f"{code or ''} {kind or ''}".lower()
        status = number or next((s for word, s in _STATUS_OF_WORD if word in words), status)
    if message is None:
        message = _without_words(status, headers, text)
    about = f"{code or ''} {kind or ''} {message} {_details(parsed)}"
    after = retry_after_of(headers, parsed)
    cls, retryable = _judge(status, str(code or ""), about, after)
    asked = headers.get("x-should-retry", "").lower()
    if asked in ("true", "false"):
        retryable = asked == "true"
    return cls(
        scrub(f"{provider}: {message[:_LONGEST_MESSAGE]}", secrets),
        status=status,
        body=scrub(text[:_LONGEST_BODY], secrets),
        request_id=scrub(request_id_of(headers, parsed) or "", secrets) or None,
        retry_after=after,
        retryable=retryable,
        code=scrub(code or kind or "", secrets) or None,
    )


def _judge(status: int | None, code: str, about: str, after: float | None) -> tuple[type[ProviderError], bool]:
    """The class and whether the same request may succeed later."""
    if status is None:
        return ServerError, True
    if status == 429:
        if _NO_BUDGET.search(about) or (_PLAN in about and after is None):
            return QuotaError, False
        over = _OVER_LIMIT.search(about)
        return RateLimitError, over is None or int(over[2]) <= int(over[1])
    if status == 402 or (status < 500 and "insufficient_quota" in about):
        return QuotaError, False
    if status in (401, 403) or (status == 400 and _WRONG_KEY.search(about)):
        return AuthenticationError, False
    if 400 <= status < 600 and _TOO_LONG.search(about):
        return ContextWindowExceededError, False
    if status == 404 or code in _NO_MODEL:
        return NotFoundError, False
    if status >= 500:
        return ServerError, True
    if status == 408:
        return ServerError, True
    if status >= 400:
        return InvalidRequestError, status == 409
    return ServerError, False  # a redirect, which is never followed with a key, or a success that holds no reply


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _fields(parsed: Any) -> tuple[str | None, str | None, str | None, int | None]:
    """Message, code, type and HTTP status of an error body, each None when it does not say."""
    if isinstance(parsed, list) and parsed and isinstance(parsed[0], Mapping):
        parsed = parsed[0]
    if not isinstance(parsed, Mapping):
        return None, None, None, None
    inner = parsed.get("error")
    found: Mapping[str, Any] = inner if isinstance(inner, Mapping) else parsed
    message = inner if isinstance(inner, str) else found.get("message") or found.get("detail") or found.get("error")
    if message is not None and not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    code, kind = found.get("code"), found.get("type") or found.get("status")
    if isinstance(inner, str) and kind is None:  # xAI: the sentence in "error", the kind in "code"
        code, kind = None, code
    number = next(
        (n for n in (found.get("status_code"), found.get("status"), code) if _is_status(n)),
        None,
    )
    return message, _word(code), _word(kind), number


def _is_status(value: Any) -> bool:
    return type(value) is int and 400 <= value < 600


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _details(parsed: Any) -> str:
    """What else an error says of its cause: OpenRouter's upstream, Google's quota names."""
    inner = parsed.get("error") if isinstance(parsed, Mapping) else None
    if not isinstance(inner, Mapping):
        return ""
    found = [inner.get("details")]
    metadata = inner.get("metadata")
    if isinstance(metadata, Mapping):
        found.append(metadata.get("raw"))
    return " ".join(f if isinstance(f, str) else json.dumps(f) for f in found if f is not None)


def _without_words(status: int | None, headers: Mapping[str, str], text: str) -> str:
    if not text:
        return f"the response has status {status} and an empty body"
    kind = headers.get("content-type", "").partition(";")[0] or "no content type"
    return f"the response is no JSON ({kind}); is the base_url right? It begins: {text[:200]!r}"


def retry_after_of(headers: Mapping[str, str], parsed: Any = None) -> float | None:
    """The seconds that a provider asks to wait, None when it does not; a zero is no wish, the next source counts."""
    for seconds in (
        _number(headers.get("retry-after-ms"), 0.001),
        _number(headers.get("retry-after")),
        _until(headers.get("retry-after")),
        _retry_info(parsed),
    ):
        if seconds is not None and seconds > 0:
            return seconds
    return None


def _number(value: str | None, unit: float = 1.0) -> float | None:
    try:
        seconds = float(value or "") * unit
    except ValueError:
        return None
    return seconds if seconds < float("inf") else None


def _until(value: str | None) -> float | None:
    try:
        date = parsedate_to_datetime(value or "")
    except (ValueError, TypeError, IndexError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=dt.UTC)
    return (date - clock.now()).total_seconds()


def _retry_info(parsed: Any) -> float | None:
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    inner = parsed.get("error") if isinstance(parsed, Mapping) else None
    details = inner.get("details") if isinstance(inner, Mapping) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, Mapping) and str(detail.get("@type", "")).endswith("RetryInfo"):
            return _number(str(detail.get("retryDelay", "")).removesuffix("s"))
    return None


def request_id_of(headers: Mapping[str, str], parsed: Any = None) -> str | None:
    """The provider's own name of a request, from a header or from the body."""
    for name in ("x-request-id", "request-id", "x-generation-id"):
        if headers.get(name):
            return headers[name]
    if isinstance(parsed, Mapping):
        groq = parsed.get("x_groq")
        for found in (parsed.get("request_id"), groq.get("id") if isinstance(groq, Mapping) else None):
            if isinstance(found, str) and found:
                return found
    return None


def scrub(text: str, secrets: Iterable[str]) -> str:
    """``text`` without the keys that a provider may have quoted back."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    return text
