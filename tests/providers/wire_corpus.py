"""The recorded exchanges of ``wire/`` as tests read them: a request, a response to the byte, and what it means."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ctxstore import Context, new_id, providers as public
from ctxstore.messages import Message
from ctxstore.prompts import from_mapping
from ctxstore.providers.base import ModelRequest
from ctxstore.providers.openai_chat import ChatCompletions

HERE = Path(__file__).parent
CORPUS = HERE.parents[2] / "shared" / "wire"  # beside the checkout where there is one, with exchanges that came later

PROVIDERS: dict[str, type[ChatCompletions]] = {
    "openai": public.OpenAI,
    "azure": public.OpenAI,
    "gemini": public.OpenAI,
    "deepseek": public.DeepSeek,
    "xai": public.XAI,
    "zai": public.ZAI,
    "mistral": public.Mistral,
    "groq": public.Groq,
    "openrouter": public.OpenRouter,
    "ollama": public.Ollama,
    "llamacpp": public.LlamaCpp,
    "vllm": public.VLLM,
}


@dataclass(frozen=True)
class Exchange:
    """One exchange; ``name`` is its file's."""

    name: str
    data: dict[str, Any]

    @property
    def expected(self) -> dict[str, Any]:
        return self.data["expected"]

    @property
    def request(self) -> dict[str, Any]:
        return self.data["request_json"] or {}

    @property
    def status(self) -> int:
        return self.data["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {k: v for k, v in self.data["response_headers_subset"].items() if not k.startswith("content-")}

    @property
    def content_type(self) -> str:
        return self.data["response_headers_subset"].get("content-type", "application/json")

    @cached_property
    def body(self) -> bytes:
        """The body as the server sent it."""
        data = self.data
        if "response_sse" in data:
            return data["response_sse"].encode()
        if "response_text" in data:
            return data["response_text"].encode()
        return (data.get("response_leading_whitespace", "") + json.dumps(data["response_json"])).encode()

    @property
    def streamed(self) -> bool:
        return "response_sse" in self.data

    def provider(self, base_url: str | None = None, **options: Any) -> ChatCompletions:
        cls = PROVIDERS[self.data["provider"]]
        return cls("test-key-1", self.request.get("model", "m"), base_url, **options)

    def model_request(self, messages: tuple[Message, ...] | None = None) -> ModelRequest:
        return ModelRequest(
            model=self.request.get("model", "m"),
            messages=messages if messages is not None else (Message.new("user", "Hi"),),
            context_id=new_id(),
            mode="completions",
            stream=self.streamed,
        )


def exchanges() -> list[Exchange]:
    """All exchanges in the form of Chat Completions, the newer copy of each."""
    found: dict[str, Exchange] = {}
    for root in (HERE / "wire", CORPUS):
        for path in sorted(root.glob("*/*.json")):
            data = json.loads(path.read_text())
            if data.get("api") == "completions":
                name = f"{path.parent.name}/{path.stem}"
                found[name] = Exchange(name, data)
    return list(found.values())


EXCHANGES = exchanges()

__all__ = ["EXCHANGES", "PROVIDERS", "Context", "Exchange", "from_mapping"]
