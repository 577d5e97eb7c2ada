"""A key is in no error, no pickle and no address that is shown."""

from __future__ import annotations

import copy
import pickle

import pytest

from ctxstore import Context
from ctxstore.errors import AuthenticationError, ConfigurationError, ConnectionFailedError
from ctxstore.providers import OpenAI

from .wire_server import WireServer, failure

KEY = "sk-very-secret-1234"


def test_a_server_that_quotes_the_key_anywhere(server: WireServer) -> None:
    server.answer(failure(401, f"wrong key {KEY}", {"x-request-id": f"req-{KEY}"}, code=KEY, type=KEY))
    with pytest.raises(AuthenticationError) as caught:
        Context(OpenAI(KEY, "m", server.url)).talk("Hi")
    assert KEY not in f"{caught.value} {caught.value!r} {vars(caught.value)}"
    assert caught.value.code == "***" and caught.value.request_id == "req-***"


def test_a_pickled_provider_has_no_key(server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = OpenAI(KEY, "m", server.url, headers={"x-api-key": KEY, "x-team": "7"})
    written = pickle.dumps(llm)
    assert KEY.encode() not in written
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    server.answer(failure(400))
    with pytest.raises(Exception, match="400"):
        Context(pickle.loads(written)).talk("Hi")
    assert server.seen[0].headers["authorization"] == "Bearer sk-of-the-environment"
    assert server.seen[0].headers["x-team"] == "7"


def test_a_copy_is_the_provider_itself() -> None:
    llm = OpenAI(KEY, "m", "http://127.0.0.1:1/v1")
    assert copy.deepcopy({"llm": llm})["llm"] is llm


def test_a_password_in_the_address_is_not_shown() -> None:
    with pytest.raises(ConnectionFailedError) as caught:
        Context(OpenAI(KEY, "m", "http://user:hidden@127.0.0.1:1/v1")).talk("Hi")
    assert "hidden" not in str(caught.value) and "http://127.0.0.1:1/v1" in str(caught.value)


@pytest.mark.parametrize("wrong", ["http://[::1/v1", "ftp://host/v1", f"http://{'a' * 300}.invalid/v1"])
def test_an_address_that_is_none(wrong: str) -> None:
    with pytest.raises(ConfigurationError):
        Context(OpenAI(KEY, "m", wrong)).talk("Hi")
