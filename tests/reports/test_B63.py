"""B63: the whole params object went into the saved conversation, with the API key in it."""

from __future__ import annotations

import json
import logging
import traceback

import httpx
import pytest
import sqlalchemy as sa

from ctxstore import Context
from ctxstore.errors import AuthenticationError, CtxstoreError
from ctxstore.messages import Message
from ctxstore.providers import OpenAI

from .scenes import scripted

KEY = "sk-test-4f1b2c3d4e5f"
SECRETS = [
    {"api_key": KEY},
    {"apiKey": KEY},
    {"API-KEY": KEY},
    {"authorization": f"Bearer {KEY}"},
    {"extra_headers": {"x-api-key": KEY}},
    {"headers": {"Authorization": KEY}},
    {"extra_body": {"nested": [{"access_token": KEY}]}},
    {"password": KEY},
    {"client_secret": KEY},
    {"aws_secret_access_key": KEY},
    {"base_url": f"https://user:{KEY}@example.invalid/"},
]


def everything(engine):
    """All that stands in the tables of the package, as one text."""
    tables = [t for t in sa.inspect(engine).get_table_names() if t.startswith("ctxstore_")]
    assert len(tables) >= 4
    with engine.connect() as c:
        return repr([c.exec_driver_sql(f"SELECT * FROM {table}").all() for table in tables])


def answering(status=200):
    """A client that answers without a network."""
    body = {"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}], "model": "m"}
    failed = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    return httpx.Client(
        transport=httpx.MockTransport(lambda request: httpx.Response(status, json=body if status == 200 else failed))
    )


def test_the_key_is_nowhere_and_the_rest_is_restored(store, engine, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    with answering() as client:
        llm = OpenAI(KEY, client=client)
        ctx = store.create(llm, params={"temperature": 0.2}, metadata={"who": "me"})
        ctx.talk("hi", params={"top_p": 0.9})
    refused = answering(401)
    with refused, pytest.raises(AuthenticationError) as caught:
        store.load(ctx.id, OpenAI(KEY, client=refused)).talk("again")
    said = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value.body)
    for place in (everything(engine), caplog.text, said, repr(ctx), repr(llm), repr(ctx.provider), ctx.to_json()):
        assert KEY not in place
    assert KEY not in repr(vars(caught.value))
    assert store.load(ctx.id, scripted()).params == {"temperature": 0.2}
    back = store.load(ctx.id, OpenAI())
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
        back.talk("without a key")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with answering() as client:
        assert store.load(ctx.id, OpenAI(client=client)).talk("with one").text == "ok"


@pytest.mark.parametrize("params", SECRETS, ids=lambda p: next(iter(p)))
def test_params_that_look_like_a_key_are_refused_by_name(params):
    given = {**params, "temperature": 0.2}
    ctx = Context(scripted("ok"))
    payload = {**ctx.to_payload(), "params": given}
    tries = [
        lambda: Context(scripted(), params=given),
        lambda: ctx.talk("hi", params=given),
        lambda: Context.restore(ctx.to_json(), provider=scripted(), params=given),
        lambda: Context.restore(payload, provider=scripted()),
    ]
    for attempt in tries:
        with pytest.raises(CtxstoreError) as caught:
            attempt()
        text = "".join(traceback.format_exception(caught.value))
        assert KEY not in text, "the refusal does not tell what it refuses"
        assert "params." in str(caught.value)
    assert len(ctx) == 0


def test_what_only_sounds_like_one_passes():
    for params in ({"max_tokens": 5}, {"logit_bias": {"50256": -100}}, {"stop": ["key"]}, {"prompt_cache_key": "a"}):
        assert Context.restore(Context(scripted(), params=params).to_json(), provider=scripted()).params == params


def test_text_can_be_masked_before_it_is_sent_or_stored(store, do, engine):
    """Keys that people paste into the chat: the filter sees each prompt first."""

    def mask(message: Message) -> Message:
        return message.model_copy(update={"content": message.text.replace(KEY, "***")})

    llm = scripted("ok")
    ctx = do(store, "create", llm, filter=mask)
    do(ctx, "talk", f"my key is {KEY}, keep it")
    assert [m.text for m in llm.requests[0].messages] == ["my key is ***, keep it"]
    assert KEY not in everything(engine)
    assert KEY not in json.dumps(do(store, "export", ctx.id), default=str)
