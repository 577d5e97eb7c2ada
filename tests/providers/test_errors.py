"""What a response that is no reply means, from its status and its body."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from ctxstore import clock, errors
from ctxstore.providers import Groq, Mistral, OpenAI
from ctxstore.providers.errors import error_of, retry_after_of
from ctxstore.providers.retry import retry_delay


def openai(message: str = "no", **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "wanted", "retryable"),
    [
        (400, openai("bad"), errors.InvalidRequestError, False),
        (400, openai(code="context_length_exceeded"), errors.ContextWindowExceededError, False),
        (400, openai("This model's maximum context length is 8192 tokens"), errors.ContextWindowExceededError, False),
        (400, openai("prompt is too long: 210000 tokens > 200000 maximum"), errors.ContextWindowExceededError, False),
        (400, openai("prompt too long; exceeded max context length"), errors.ContextWindowExceededError, False),
        (400, openai("The input token count (1) exceeds the maximum"), errors.ContextWindowExceededError, False),
        (400, openai("API key not valid. Please pass a valid API key."), errors.AuthenticationError, False),
        (400, openai("Invalid model: x", type="invalid_model", code="invalid_model"), errors.NotFoundError, False),
        (401, b"", errors.AuthenticationError, False),
        (402, b"Payment Required", errors.QuotaError, False),
        (403, openai(), errors.AuthenticationError, False),
        (404, openai(), errors.NotFoundError, False),
        (408, openai(), errors.ServerError, True),
        (409, openai(), errors.InvalidRequestError, True),
        (413, b"<html>too large</html>", errors.InvalidRequestError, False),
        (422, b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', errors.InvalidRequestError, False),
        (429, openai("Rate limit reached"), errors.RateLimitError, True),
        (429, openai(code="insufficient_quota"), errors.QuotaError, False),
        (429, openai("You exceeded your current quota, please check your plan"), errors.QuotaError, False),
        (429, openai("Request too large: Limit 30000, Requested 50000"), errors.RateLimitError, False),
        (429, openai("TPM: Limit 30000, Used 20000, Requested 20000"), errors.RateLimitError, True),
        (429, openai("Upgrade at https://example.test/settings/billing"), errors.RateLimitError, True),
        (500, openai(), errors.ServerError, True),
        (503, b"", errors.ServerError, True),
        (529, openai(type="overloaded_error"), errors.ServerError, True),
        (302, b"", errors.ServerError, False),
    ],
)
def test_kinds(status: int, body: bytes, wanted: type[errors.ProviderError], retryable: bool) -> None:
    error = OpenAI("k").error(status, {}, body)
    assert type(error) is wanted
    assert error.retryable is retryable
    assert error.status == status
    assert f"(status {status})" in str(error)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"error": {"message": "m", "type": "insufficient_quota"}}, errors.QuotaError),
        ({"error": {"message": "m", "code": 429}}, errors.RateLimitError),
        ({"error": {"message": "m", "type": "rate_limit_exceeded"}}, errors.RateLimitError),
        ({"error": {"message": "m", "status_code": 400, "code": "tool_use_failed"}}, errors.InvalidRequestError),
        ({"error": {"message": "m", "type": "server_error"}}, errors.ServerError),
        ({"error": {"message": "m"}}, errors.ServerError),
        ({"error": "m"}, errors.ServerError),
        ({"message": "m", "code": "context_length_exceeded"}, errors.ContextWindowExceededError),
    ],
)
def test_errors_inside_a_stream(body: dict[str, Any], wanted: type[errors.ProviderError]) -> None:
    error = error_of("p", None, {}, body)
    assert type(error) is wanted
    assert str(error).startswith("p: m")


def test_the_message_of_each_form() -> None:
    llm = Mistral("k")
    for body, message in [
        (b'{"object": "error", "message": "flat", "code": "3000"}', "flat"),
        (b'{"detail": "detailed"}', "detailed"),
        (b'{"error": "a sentence", "code": "invalid-argument"}', "a sentence"),
        (b'[{"error": {"message": "in a list"}}]', "in a list"),
        (b"", "empty body"),
        (b"Not Found", "no JSON"),
    ]:
        assert message in str(llm.error(404, {}, body))


def test_the_cause_behind_a_router() -> None:
    body = {"error": {"message": "Provider returned error", "metadata": {"raw": "insufficient_quota upstream"}}}
    assert type(error_of("openrouter", 429, {}, json.dumps(body))) is errors.QuotaError


def test_what_the_provider_says_of_trying_again_comes_first() -> None:
    assert not OpenAI("k").error(500, {"x-should-retry": "false"}, b"").retryable
    assert OpenAI("k").error(400, {"x-should-retry": "true"}, b"").retryable


def test_request_ids() -> None:
    assert OpenAI("k").error(500, {"x-request-id": "req_1"}, b"").request_id == "req_1"
    assert Groq("k").error(500, {}, b'{"error": {}, "x_groq": {"id": "req_2"}}').request_id == "req_2"


@pytest.mark.parametrize("body", [b'{"error": {"message": "No: sk-very-secret"}}', b"sk-very-secret <html>"])
def test_a_key_that_is_quoted_back_is_in_no_error(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OpenAI("sk-very-secret").error(401, {}, body)
    assert "sk-very-secret" not in f"{error} {error.body} {error!r} {vars(error)}"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    error = OpenAI(headers={"X-Api-Key": "other-secret"}).error(401, {}, body + b" other-secret")
    assert "secret" not in f"{error} {error.body} {error!r} {vars(error)}"


NOW = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("headers", "body", "wanted"),
    [
        ({}, None, None),
        ({"retry-after-ms": "1574", "retry-after": "2"}, None, 1.574),
        ({"retry-after-ms": "0", "retry-after": "1"}, None, 1.0),
        ({"retry-after": "0.5"}, None, 0.5),
        ({"retry-after": "0"}, None, None),
        ({"retry-after": "-3"}, None, None),
        ({"retry-after": "soon"}, None, None),
        ({"retry-after": "inf"}, None, None),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, None, 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT"}, None, None),
        ({}, {"error": {"details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "34.4s"}]}}, 34.4),
        ({}, [{"error": {"details": [{"@type": "x/RetryInfo", "retryDelay": "48s"}]}}], 48.0),
        ({}, {"error": {"details": "words"}}, None),
    ],
)
def test_the_wait_that_is_asked_for(headers: dict[str, str], body: Any, wanted: float | None) -> None:
    with clock.frozen(NOW):
        assert retry_after_of(headers, body) == (pytest.approx(wanted) if wanted is not None else None)


def test_the_wait_before_a_retry() -> None:
    error = errors.ServerError("no")
    for attempt, most in enumerate([0.5, 1, 2, 4, 8, 8, 8]):
        for _ in range(50):
            delay = retry_delay(error, attempt)
            assert delay is not None
            assert most * 0.75 <= delay <= most
    assert retry_delay(errors.RateLimitError("no", retry_after=3.25), 0) == 3.25
    assert retry_delay(errors.RateLimitError("no", retry_after=121), 0) is None
    for never in (errors.QuotaError("no"), errors.StreamInterruptedError("no"), errors.AuthenticationError("no")):
        assert retry_delay(never, 0) is None
    assert retry_delay(errors.ServerError("no", retryable=False), 0) is None
