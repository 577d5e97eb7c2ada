"""How neutral messages become Chat Completions and back, beyond what the recorded exchanges hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from ctxstore import Context, errors, new_id, providers, tool
from ctxstore.messages import (
    DataPart,
    FilePart,
    ImagePart,
    Message,
    Origin,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResult,
)
from ctxstore.prompts import tool_message
from ctxstore.providers import DeepSeek, Groq, LlamaCpp, Mistral, Ollama, OpenAI, OpenRouter, provider
from ctxstore.providers.base import ModelRequest, Provider, Reply, Schema


def request(*messages: Message, **fields: Any) -> ModelRequest:
    made = {"model": "m", "context_id": new_id(), "mode": "completions", "stream": False, **fields}
    return ModelRequest(messages=tuple(messages), **made)


def body(llm: Provider, *messages: Message, **fields: Any) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(llm.build(request(*messages, **fields)).body)
    return built


def sent(llm: Provider, *messages: Message, **fields: Any) -> list[dict[str, Any]]:
    messages_: list[dict[str, Any]] = body(llm, *messages, **fields)["messages"]
    return messages_


def read(llm: Provider, message: dict[str, Any] | bytes, *history: Message, stream: bool = False) -> Reply:
    data = message
    if not isinstance(data, bytes):
        data = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    decoder = llm.decoder(request(*history, stream=stream), {})
    decoder.feed(data)
    return decoder.finish()


def chunks(*deltas: dict[str, Any]) -> bytes:
    events = [{"choices": [{"index": 0, "delta": d}]} for d in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)


def replied(llm: Provider, content: Any) -> Message:
    return Message.new("assistant", content, origin=Origin(provider=llm.name))


def call(identity: str = "call_1", arguments: str = "{}", **fields: Any) -> ToolCall:
    return ToolCall(type="tool_call", id=identity, name="stock", arguments_json=arguments, **fields)


def result(identity: str = "call_1", value: Any = None) -> ToolResult:
    return ToolResult(type="tool_result", id=identity, value=value)


LLM = OpenAI("sk-test")

# -- keys and providers


def test_every_provider_by_its_name() -> None:
    names = ["openai", "deepseek", "xai", "zai", "ollama", "llamacpp", "vllm", "openrouter", "mistral", "groq"]
    for name in names:
        llm = provider(f"{name}:some/model:7b")
        assert (llm.name, llm.model) == (name, "some/model:7b")
    assert provider("openai").model == "gpt-5-mini"
    with pytest.raises(errors.ConfigurationError, match=r"'nope'.*deepseek.*openai"):
        provider("nope:x")
    with pytest.raises(errors.ConfigurationError, match="model="):
        provider("ollama")
    assert sorted(providers.__all__, key=str.lower) == sorted(set(providers.__all__), key=str.lower)


@pytest.mark.parametrize("cls", [OpenAI, DeepSeek, Mistral, Groq, OpenRouter])
def test_a_missing_key_names_its_variable(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = cls.dialect.key_variable
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(errors.AuthenticationError, match=variable):
        cls().build(request(Message.new("user", "Hi")))
    monkeypatch.setenv(variable, " from-env\n")
    wire = cls().build(request(Message.new("user", "Hi")))
    assert wire.headers["authorization"] == "Bearer from-env"
    assert wire.url == f"{cls.dialect.base_url}/chat/completions"
    assert cls("given").build(request(Message.new("user", "Hi"))).headers["authorization"] == "Bearer given"


def test_servers_of_ones_own_need_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    hi = request(Message.new("user", "Hi"))
    local, gateway = OpenAI(base_url="http://localhost:9/v1"), OpenAI(headers={"api-key": "k"})
    for llm in (LlamaCpp(), Ollama(model="m"), local, gateway):
        assert "authorization" not in llm.build(hi).headers
    assert Ollama(key="k", model="m").build(hi).headers["authorization"] == "Bearer k"


def test_a_key_is_in_nothing_that_is_shown() -> None:
    llm = OpenAI("sk-very-secret", headers={"x-api-key": "other-secret"})
    ctx = Context(llm)
    assert "secret" not in f"{llm!r} {llm} {ctx!r} {ctx.to_json()}"
    for bad in ("sk-sécret", "sk\nsecret"):
        with pytest.raises(errors.ConfigurationError) as caught:
            OpenAI(bad).build(request(Message.new("user", "Hi")))
        assert "cret" not in str(caught.value)
        with pytest.raises(errors.ConfigurationError):
            OpenAI("k", headers={"x": bad})


def test_the_base_url() -> None:
    hi = request(Message.new("user", "Hi"))
    assert OpenAI("k", base_url="https://host/v1/").build(hi).url == "https://host/v1/chat/completions"
    azure = OpenAI("k", base_url="https://host/openai?api-version=2024-10-21").build(hi)
    assert azure.url == "https://host/openai/chat/completions?api-version=2024-10-21"
    with pytest.raises(errors.ConfigurationError, match="http"):
        OpenAI("k", base_url="file:///etc/passwd")


def test_timeouts_reach_the_request() -> None:
    llm = OpenAI("k", connect_timeout=1, first_byte_timeout=2, read_timeout=3)
    wire = llm.build(request(Message.new("user", "Hi")))
    assert (wire.connect_timeout, wire.first_byte_timeout, wire.read_timeout) == (1, 2, 3)


def test_the_other_form_is_refused_by_name() -> None:
    with pytest.raises(errors.ConfigurationError, match="responses"):
        Context(LLM, mode="responses").talk("Hi")


# -- parameters, tools, schemas


def test_parameters_pass_and_the_librarys_own_do_not() -> None:
    built = body(LLM, Message.new("user", "Hi"), params={"temperature": 0.2, "max_tokens": 5, "seed": 2**70})
    assert (built["temperature"], built["max_completion_tokens"], built["seed"]) == (0.2, 5, 2**70)
    for other in (Groq("k"), OpenAI("k", base_url="https://host/v1")):
        assert body(other, Message.new("user", "Hi"), params={"max_tokens": 5})["max_tokens"] == 5
    for key in ("messages", "stream"):
        with pytest.raises(errors.ConfigurationError, match=key):
            body(LLM, params={key: []})
    with pytest.raises(errors.UnsupportedValueError, match="params"):
        body(LLM, params={"temperature": float("nan")})


@tool
def stock(sku: str, warehouse: str = "A") -> int:
    """How many are left."""
    return 3


def test_tools() -> None:
    (declared,) = body(LLM, tools=(stock,))["tools"]
    assert declared["type"] == "function"
    assert (declared["function"]["name"], declared["function"]["description"]) == ("stock", "How many are left.")
    assert declared["function"]["parameters"]["required"] == ["sku"]
    assert len(body(LLM, tools=(stock,), params={"tools": [{"type": "web_search"}]})["tools"]) == 2


class City(BaseModel):
    name: str


def test_schemas() -> None:
    schema = City.model_json_schema()
    wanted = Schema("City", schema, City)
    assert body(LLM, schema=wanted)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "City", "schema": schema},
    }
    strict = Schema("City", {**schema, "additionalProperties": False})
    assert body(LLM, schema=strict)["response_format"]["json_schema"]["strict"] is True
    inner = {"type": "object", "properties": {"city": schema}, "required": ["city"], "additionalProperties": False}
    assert "strict" not in body(LLM, schema=Schema("X", inner))["response_format"]["json_schema"]
    words = body(DeepSeek("k"), Message.new("user", "Hi"), schema=wanted)
    assert words["response_format"] == {"type": "json_object"}
    assert "JSON" in words["messages"][0]["content"]
    assert json.dumps(schema, separators=(",", ":")) in words["messages"][0]["content"]


def test_streams_are_asked_for_their_usage_where_that_is_understood() -> None:
    assert body(LLM, stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body(Mistral("k"), stream=True)
    assert "stream" not in body(LLM)


# -- messages


def test_roles() -> None:
    both = (Message.new("developer", "a"), Message.new("system", "b"))
    assert [m["role"] for m in sent(LLM, *both)] == ["developer", "system"]
    assert sent(Groq("k"), Message.new("developer", "a"))[0]["role"] == "system"


def test_each_result_is_a_message_right_after_its_call() -> None:
    history = [
        Message.new("user", "How many?"),
        Message.new("assistant", [call("c1"), call("c2")]),
        tool_message([result("c1", {"left": 3}), result("c2", None)]),
        Message.new("user", "Thanks"),
    ]
    assert sent(LLM, *history)[2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": '{"left":3}'},
        {"role": "tool", "tool_call_id": "c2", "content": "null"},
        {"role": "user", "content": "Thanks"},
    ]


def test_an_image_from_a_tool_follows_in_a_user_message() -> None:
    image = ImagePart(type="image", url="https://x/y.png")
    history = [
        Message.new("assistant", [call("c1"), call("c2")]),
        Message.new("tool", [result("c1", "see"), image]),
        Message.new("tool", [result("c2", "done")]),
        Message.new("user", "And?"),
    ]
    assert [m["role"] for m in sent(LLM, *history)] == ["assistant", "tool", "tool", "user", "user"]
    assert sent(LLM, *history)[3]["content"] == [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]


def test_what_a_user_says() -> None:
    parts = [
        TextPart(type="text", text="Look"),
        ImagePart(type="image", data="QUJD", media_type="image/png", detail="low"),
        FilePart(type="file", data="QUJD", media_type="application/pdf", name="a.pdf"),
        FilePart(type="file", data="QUJD", media_type="audio/mpeg"),
        FilePart(type="file", file={"id": "file-1"}),
        DataPart(type="data", value={"a": 1}),
    ]
    assert sent(LLM, Message.new("user", parts))[0]["content"] == [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "text", "text": '{"a":1}'},
    ]
    with pytest.raises(errors.ConfigurationError, match=r"messages\[0\]\.content\[0\].*URL"):
        sent(LLM, Message.new("user", [FilePart(type="file", url="https://x/a.pdf")]))
    with pytest.raises(errors.ConfigurationError, match=r"messages\[0\]\.content\[0\]"):
        sent(LLM, Message.new("user", [ImagePart(type="image")]))


@pytest.mark.parametrize("arguments", ['{"command": "echo', "", "[1]", "null", '"x"', "{'a': 1}"])
def test_broken_arguments_are_sent_as_valid_ones(arguments: str) -> None:
    """B31: a call that was cut must not spoil every later request; the stored string stays as it is."""
    message = replied(LLM, [call(arguments=arguments)])
    first = sent(LLM, message, tool_message([result()]))
    told = first[0]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(told), dict)
    assert first == sent(LLM, message, tool_message([result()]))
    assert message.tool_calls[0].arguments_json == arguments


@pytest.mark.parametrize("identity", ["", "call_-8297576131923320661", "x" * 65, "a b", "toolu_01", "é", "9chars9ch"])
@pytest.mark.parametrize("llm", [LLM, Mistral("k"), OpenRouter("k")], ids=lambda p: p.name)
def test_ids_that_a_server_refuses_are_mapped_for_a_call_and_its_result_alike(llm: Any, identity: str) -> None:
    message = replied(LLM, [call(identity)])
    first, second = sent(llm, message, tool_message([result(identity, 1)]))
    mapped = first["tool_calls"][0]["id"]
    assert mapped == second["tool_call_id"]
    assert llm.dialect.call_id.fullmatch(mapped)
    assert (mapped == identity) is bool(llm.dialect.call_id.fullmatch(identity))
    assert message.tool_calls[0].id == identity


@given(st.lists(st.sampled_from(["user", "assistant", "call"]), min_size=1, max_size=8))
def test_what_was_sent_is_a_prefix_of_what_is_sent_next(kinds: list[str]) -> None:
    history: list[Message] = []
    for index, kind in enumerate(kinds):
        if kind == "call":
            history.append(replied(LLM, [ReasoningPart(type="reasoning", text="hm"), call(f"c{index}")]))
            history.append(tool_message([result(f"c{index}", index)]))
        else:
            history.append(Message.new(kind, f"text {index}"))
    for llm in (LLM, DeepSeek("k"), Mistral("k")):
        before = b""
        for length in range(1, len(history) + 1):
            if history[length - 1].tool_calls:
                continue
            wire = llm.build(request(*history[:length], stream=True, tools=(stock,))).body
            messages = wire[: wire.index(b'],"tools"')]
            assert messages.startswith(before)
            before = messages


# -- opaque state


def test_reasoning_goes_back_in_the_spelling_it_came_in_and_to_its_origin_alone() -> None:
    for field in ("reasoning", "reasoning_content"):
        llm = LlamaCpp()
        (content,) = read(llm, {"role": "assistant", "content": "4", field: "Two and two."}).choices
        message = replied(llm, content)
        assert message.reasoning == "Two and two."
        assert sent(llm, message) == [{"role": "assistant", "content": "4", field: "Two and two."}]
        for other in (LLM, Groq("k"), Mistral("k"), LlamaCpp(name="another")):
            assert sent(other, message) == [{"role": "assistant", "content": "4"}]


def test_details_with_signatures_go_back_unchanged() -> None:
    llm = OpenRouter("k")
    details = [
        {"type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.encrypted", "data": "ZW5j", "index": 1},
    ]
    (plain,) = read(llm, {"content": "4", "reasoning": "Hm.", "reasoning_details": details}).choices
    streamed = chunks(
        {"reasoning": "H", "reasoning_details": [{"type": "reasoning.text", "text": "H", "index": 0}]},
        {"reasoning": "m.", "reasoning_details": [{"type": "reasoning.text", "text": "m.", "index": 0}]},
        {"reasoning_details": [{**details[0], "text": ""}]},
        {"reasoning_details": [details[1]], "content": "4"},
    )
    (other,) = read(llm, streamed, stream=True).choices
    for content in (plain, other):
        message = Message.model_validate(replied(llm, content).to_payload())
        assert message.reasoning == "Hm."
        (back,) = sent(llm, message)
        assert back == {"role": "assistant", "content": "4", "reasoning_details": details}
        assert sent(LLM, message) == [{"role": "assistant", "content": "4"}]


def test_state_of_a_call_and_of_a_message_without_reasoning() -> None:
    signed = {"google": {"thought_signature": "c2ln"}}
    wire = {"id": "c1", "type": "function", "function": {"name": "stock", "arguments": "{}"}, "extra_content": signed}
    (content,) = read(LLM, {"content": None, "tool_calls": [wire], "extra_content": signed}).choices
    message = Message.model_validate(replied(LLM, content).to_payload())
    (back,) = sent(LLM, message)
    assert back["tool_calls"] == [wire]
    assert back["extra_content"] == signed
    (foreign,) = sent(Groq("k"), message)
    assert "extra_content" not in json.dumps(foreign)


def test_thinking_chunks_of_a_list_keep_their_order_in_a_stream() -> None:
    llm = Mistral("k")
    streamed = chunks(
        {"role": "assistant", "content": ""},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "m."}], "closed": True}]},
        {"content": [{"type": "text", "text": "1"}]},
        {"content": "44"},
    )
    (content,) = read(llm, streamed, stream=True).choices
    message = replied(llm, content)
    assert (message.reasoning, message.text) == ("Hmm.", "144")
    (back,) = sent(llm, message)
    assert back["content"] == [
        {"type": "thinking", "closed": True, "thinking": [{"type": "text", "text": "Hmm."}]},
        {"type": "text", "text": "144"},
    ]
    assert sent(LLM, message) == [{"role": "assistant", "content": "144"}]


@pytest.mark.parametrize("cut", range(1, 12))
def test_thoughts_in_tags(cut: int) -> None:
    llm, text = LlamaCpp(), "<think>a < b </thin</think>\n4"
    pieces = [text[i : i + cut] for i in range(0, len(text), cut)]
    shown = []
    decoder = llm.decoder(request(stream=True), {})
    for byte in chunks({"role": "assistant", "content": ""}, *({"content": p} for p in pieces)):
        shown += decoder.feed(bytes([byte]))
    (content,) = decoder.finish().choices
    message = replied(llm, content)
    assert (message.reasoning, message.text) == ("a < b </thin", "\n4")
    assert "".join(d.reasoning for d in shown) == "a < b </thin"
    assert "".join(d.text for d in shown) == "\n4"
    assert sent(llm, message) == [{"role": "assistant", "content": text}]
    assert read(llm, {"role": "assistant", "content": text}).choices[0] == content
    assert read(LLM, {"role": "assistant", "content": text}).choices[0] == text


# -- replies


def test_content_none_and_empty_are_two_things() -> None:
    assert read(LLM, {"role": "assistant", "content": None}).choices == (None,)
    assert read(LLM, {"role": "assistant", "content": ""}).choices == ("",)


def test_a_refusal_is_kept_apart() -> None:
    (content,) = read(LLM, {"role": "assistant", "content": None, "refusal": "No."}).choices
    assert [p.type for p in content] == ["refusal"]
    message = replied(LLM, content)
    assert sent(LLM, message) == [{"role": "assistant", "content": None, "refusal": "No."}]
    assert sent(Groq("k"), message) == [{"role": "assistant", "content": "No."}]


def test_ids_that_are_missing_or_repeat_are_made() -> None:
    history = replied(LLM, [call("0")])
    function = {"name": "stock", "arguments": "{}"}
    wire = [{"id": i, "type": "function", "function": function} for i in ("", None, "0", "x", "x")]
    (content,) = read(LLM, {"role": "assistant", "content": None, "tool_calls": wire}, history).choices
    ids = [c.id for c in content]
    assert len({*ids, "0", ""}) == 7
    assert ids[3] == "x"


def test_arguments_are_kept_to_the_letter() -> None:
    for given_, kept in [('{"a":  1}', '{"a":  1}'), ('{"a', '{"a'), ("", ""), ({"a": 1}, '{"a": 1}'), (None, "")]:
        wire = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": given_}}]
        (content,) = read(LLM, {"role": "assistant", "content": None, "tool_calls": wire}).choices
        assert content[0].arguments_json == kept


def test_calls_in_a_stream_with_and_without_an_index() -> None:
    def piece(arguments: str, **head: Any) -> dict[str, Any]:
        name = head.pop("name", None)
        return {"tool_calls": [{**head, "function": {"arguments": arguments, **({"name": name} if name else {})}}]}

    interleaved = [
        piece("", index=0, id="a", name="f"),
        piece("", index=1, id="b", name="g"),
        piece('{"x":', index=0),
        piece("{}", index=1),
        piece("1}", index=0),
    ]
    counted_by_id = [piece('{"x":', id="a", name="f"), piece("1}"), piece("{}", id="b", name="g")]
    same_index = [piece('{"x":1}', index=0, id="a", name="f"), piece("{}", index=0, id="b", name="g")]
    for deltas in (interleaved, counted_by_id, same_index):
        (content,) = read(LLM, chunks(*deltas), stream=True).choices
        assert [(c.id, c.name, c.arguments_json) for c in content] == [("a", "f", '{"x":1}'), ("b", "g", "{}")]


def test_a_character_that_a_stream_cuts_in_half_is_whole() -> None:
    data = b"".join(b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % half for half in (b"\\ud83d", b"\\ude00!"))
    decoder = LLM.decoder(request(stream=True), {})
    deltas = decoder.feed(data + b"data: [DONE]\n\n")
    assert "".join(d.text for d in deltas) == "\U0001f600!" == decoder.finish().choices[0]


def test_several_choices_show_the_last_which_enters_the_context() -> None:
    events = [{"choices": [{"index": i, "delta": {"content": f"{i}{n}"}}]} for n in "ab" for i in (0, 1)]
    events += [{"choices": [{"index": i, "delta": {}, "finish_reason": "stop"}]} for i in (0, 1)]
    decoder = LLM.decoder(request(stream=True), {})
    decoder.feed(b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events))
    assert decoder.finish().choices == ("0a0b", "1a1b")


def test_numbers_that_json_has_no_form_for_do_not_stop_a_reply() -> None:
    data = b'{"choices": [{"message": {"content": "4"}, "logprobs": {"x": -Infinity}, "finish_reason": "stop"}]}'
    assert read(LLM, data).choices == ("4",)


def test_a_stream_without_a_done_marker_is_whole_once_it_gave_its_reason() -> None:
    assert read(LLM, chunks({"content": "4"}), stream=True).choices == ("4",)
