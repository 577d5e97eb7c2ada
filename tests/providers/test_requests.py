"""The request that is built from a parsed history is the recorded one, in all that matters.

Recorded requests were sent by other clients, so the two are compared in a normal form; ``normal`` is the whole list of
what is held to be the same.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxstore import new_id
from ctxstore.messages import FilePart, Message, Origin
from ctxstore.prompts import from_mapping
from ctxstore.providers import DeepSeek
from ctxstore.providers.base import ModelRequest, Schema
from ctxstore.tools import Tool

from .wire_corpus import EXCHANGES, Exchange

REQUESTS = [e for e in EXCHANGES if e.request.get("messages")]
OURS = {"model", "messages", "tools", "stream", "stream_options", "response_format"}


def parse(exchange: Exchange, message: dict[str, Any]) -> Message:
    """A recorded message as it stands in a context: replies are read as replies, the rest as a user gives it."""
    if message["role"] != "assistant":
        content = message.get("content")
        if isinstance(content, list):
            message = {**message, "content": [part(p) for p in content]}
        return from_mapping(message)
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "model": "m"}
    decoder = exchange.provider().decoder(exchange.model_request(()), {})
    decoder.feed(json.dumps(body).encode())
    (content,) = decoder.finish().choices
    return Message.new("assistant", content, origin=Origin(provider=exchange.provider().name))


def part(data: dict[str, Any]) -> Any:
    if data["type"] == "file" and "file_data" in data["file"]:
        head, _, body = data["file"]["file_data"].partition(";base64,")
        name, kind = data["file"].get("filename"), head.removeprefix("data:")
        return FilePart(type="file", data=body, media_type=kind, name=name)
    if data["type"] == "input_audio":
        sound = data["input_audio"]
        return FilePart(type="file", data=sound["data"], media_type=f"audio/{sound['format']}")
    return data


def rebuilt(exchange: Exchange) -> tuple[dict[str, Any], ModelRequest]:
    told = exchange.request
    tools = [t["function"] for t in told.get("tools", ())]
    wanted = (told.get("response_format") or {}).get("json_schema")
    request = ModelRequest(
        model=told["model"],
        messages=tuple(parse(exchange, m) for m in told["messages"]),
        context_id=new_id(),
        mode="completions",
        stream=bool(told.get("stream")),
        tools=tuple(
            Tool(print, name=t["name"], description=t.get("description"), parameters=t.get("parameters")) for t in tools
        ),
        schema=Schema(wanted["name"], wanted["schema"]) if wanted else None,
        params={k: v for k, v in told.items() if k not in OURS},
    )
    wire = exchange.provider().build(request)
    assert wire.method == "POST"
    assert json.loads(wire.body) == json.loads(exchange.provider().build(request).body)
    return json.loads(wire.body), request


def normal(exchange: Exchange, body: dict[str, Any]) -> dict[str, Any]:
    """``body`` without what makes no difference."""
    out = {k: v for k, v in body.items() if k not in ("tools", "stream_options", "response_format")}
    out["stream"] = bool(body.get("stream"))  # false is what is meant when it is left out
    if exchange.data["provider"] in ("openai", "azure", "gemini") and "max_tokens" in out:
        out["max_completion_tokens"] = out.pop("max_tokens")  # the name that all of OpenAI's models take
    if "tools" in body:  # strictness and extra keys of the declarations are each client's own
        out["tools"] = [{k: t["function"].get(k) for k in ("name", "parameters")} for t in body["tools"]]
    if "response_format" in body:
        schema = body["response_format"].get("json_schema", {})
        out["response_format"] = {k: schema.get(k) for k in ("name", "schema")}
    out["messages"] = [normal_message(exchange, m) for m in body["messages"]]
    return out


def normal_message(exchange: Exchange, message: dict[str, Any]) -> dict[str, Any]:
    out = dict(message)
    content = out.get("content")
    if isinstance(content, list):
        if len(content) == 1 and content[0]["type"] == "text":
            out["content"] = content[0]["text"]  # a list of one text is that text
        else:
            out["content"] = [{k: v for k, v in p.items() if k != "closed"} for p in content]
    if message["role"] != "assistant":
        return out
    out.pop("prefix", None)
    if not out.get("tool_calls"):
        out.pop("tool_calls", None)
        return out
    out["content"] = out.get("content") or None  # beside calls, no text, the empty text and null are one
    out["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in out["tool_calls"]]
    if exchange.data["provider"] == "deepseek":
        out["reasoning_content"] = out.get("reasoning_content", "")  # always sent: thinking models insist on it
    if exchange.data["provider"] == "ollama" and "reasoning_content" in out:
        out["reasoning"] = out.pop("reasoning_content")  # that client sent both spellings, of which one is enough
    return out


@pytest.mark.parametrize("exchange", REQUESTS, ids=lambda e: e.name)
def test_the_recorded_request_is_rebuilt(exchange: Exchange) -> None:
    built, _ = rebuilt(exchange)
    assert normal(exchange, built) == normal(exchange, exchange.request)


def test_there_are_histories_to_compare() -> None:
    long = [e for e in REQUESTS if any(m["role"] == "assistant" for m in e.request["messages"])]
    assert len(long) >= 18


PAIRS = [
    ("deepseek/reasoning-tools-1", "deepseek/reasoning-tools-2-replay"),
    ("mistral/thinking-chunks", "mistral/thinking-chunks-2-replay"),
    ("mistral/tools-parallel-1", "mistral/tools-parallel-2-results"),
    ("groq/tools-1", "groq/tools-2-results"),
    ("ollama/tools-1", "ollama/tools-2-results"),
    ("openai/chat-tools-parallel-1", "openai/chat-tools-parallel-2-results"),
    ("xai/chat-tools-parallel-1", "xai/chat-tools-parallel-2-results"),
    ("zai/reasoning-tools-1", "zai/reasoning-tools-2-results"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_reply_goes_back_as_it_came(first: str, second: str) -> None:
    """The recorded first reply, read and sent again, is the assistant turn of the recorded second request."""
    by_name = {e.name: e for e in EXCHANGES}
    one, two = by_name[first], by_name[second]
    decoder = one.provider().decoder(one.model_request(()), {})
    decoder.feed(one.body)
    reply = decoder.finish()
    message = Message.new("assistant", reply.choices[-1], origin=Origin(provider=one.provider().name))
    back = Message.model_validate(json.loads(json.dumps(message.to_payload())))
    assert back == message
    history = [*one.request["messages"]]
    sent = json.loads(one.provider().build(one.model_request((*(parse(one, m) for m in history), back))).body)
    ours = normal_message(two, sent["messages"][-1])
    theirs = normal_message(two, two.request["messages"][len(history)])
    arguments(ours), arguments(theirs)
    if first.startswith("zai"):  # that client left the reasoning and the text out; thinking is preserved by sending it
        ours.pop("reasoning_content")
        assert ours.pop("content").strip().startswith("I'll get the current date")
        theirs.pop("content")
    assert ours == theirs


def arguments(message: dict[str, Any]) -> None:
    """Some clients wrote the arguments anew, with other spaces."""
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])


def test_a_turn_with_calls_has_its_reasoning_at_deepseek_even_when_there_was_none() -> None:
    llm = DeepSeek("k")
    call = {"id": "call_1", "name": "stock", "arguments": "{}"}
    request = ModelRequest(
        model="deepseek-reasoner",
        messages=(from_mapping({"role": "assistant", "content": None, "tool_calls": [call]}),),
        context_id=new_id(),
        mode="completions",
        stream=False,
    )
    assert json.loads(llm.build(request).body)["messages"][0]["reasoning_content"] == ""
