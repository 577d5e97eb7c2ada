"""Who speaks Chat Completions where, and how: one class a server, all of it in its dialect."""

from __future__ import annotations

import re

from ..errors import ConfigurationError
from .base import Provider
from .dialect import Dialect
from .openai_chat import ChatCompletions

__all__ = [
    "VLLM",
    "XAI",
    "ZAI",
    "DeepSeek",
    "Groq",
    "LlamaCpp",
    "Mistral",
    "Ollama",
    "OpenAI",
    "OpenRouter",
    "provider",
]


class OpenAI(ChatCompletions):
    """OpenAI, or with ``base_url`` any server that speaks its Chat Completions."""

    dialect = Dialect(
        name="openai",
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        model="gpt-5-mini",
        developer_role=True,
        max_tokens="max_completion_tokens",  # its reasoning models refuse the other
        refusal=True,
        price_id="openai",
    )


class DeepSeek(ChatCompletions):
    """DeepSeek."""

    dialect = Dialect(
        name="deepseek",
        base_url="https://api.deepseek.com",
        key_variable="DEEPSEEK_API_KEY",
        model="deepseek-chat",
        replay_reasoning="calls",  # without it a turn with calls is a 400
        schema="json_object",
        price_id="deepseek",
    )


class XAI(ChatCompletions):
    """xAI. Its completion tokens leave out reasoning, which only the total holds."""

    dialect = Dialect(
        name="xai",
        base_url="https://api.x.ai/v1",
        key_variable="XAI_API_KEY",
        model="grok-4",
        price_id="x-ai",
    )


class ZAI(ChatCompletions):
    """Z.ai."""

    dialect = Dialect(
        name="zai",
        base_url="https://api.z.ai/api/paas/v4",
        key_variable="ZAI_API_KEY",
        model="glm-4.6",
        stream_usage=False,
        schema="json_object",
        price_id="zai",
    )


class Ollama(ChatCompletions):
    """Ollama on this machine."""

    dialect = Dialect(name="ollama", base_url="http://127.0.0.1:11434/v1", reasoning="reasoning", think_tags=True)


class LlamaCpp(ChatCompletions):
    """llama.cpp's ``llama-server`` on this machine; it serves one model, whatever the request calls it."""

    dialect = Dialect(name="llamacpp", base_url="http://127.0.0.1:8080/v1", model="default", think_tags=True)


class VLLM(ChatCompletions):
    """vLLM on this machine."""

    dialect = Dialect(name="vllm", base_url="http://127.0.0.1:8000/v1", reasoning="reasoning", think_tags=True)


class OpenRouter(ChatCompletions):
    """OpenRouter. Its reasoning_details go back as they came."""

    dialect = Dialect(
        name="openrouter",
        base_url="https://openrouter.ai/api/v1",
        key_variable="OPENROUTER_API_KEY",
        model="openai/gpt-5-mini",
        reasoning="reasoning",
        message_state=("reasoning_details",),
        call_id=re.compile(r"[A-Za-z0-9_-]{1,64}"),
        price_id="openrouter",
    )


class Mistral(ChatCompletions):
    """Mistral. Reasoning stands in its content, as chunks of a list; tool-call ids are nine letters and digits."""

    dialect = Dialect(
        name="mistral",
        base_url="https://api.mistral.ai/v1",
        key_variable="MISTRAL_API_KEY",
        model="mistral-small-latest",
        stream_usage=False,  # it refuses the question and answers it unasked
        missing_tokens="input",  # audio is in the total alone
        list_content=True,
        call_id=re.compile(r"[A-Za-z0-9]{9}"),
        price_id="mistral",
    )


class Groq(ChatCompletions):
    """Groq."""

    dialect = Dialect(
        name="groq",
        base_url="https://api.groq.com/openai/v1",
        key_variable="GROQ_API_KEY",
        model="openai/gpt-oss-120b",
        stream_usage=False,
        usage_path=("x_groq", "usage"),
        reasoning="reasoning",
        price_id="groq",
    )


_BY_NAME: dict[str, type[ChatCompletions]] = {
    cls.dialect.name: cls for cls in (OpenAI, DeepSeek, XAI, ZAI, Ollama, LlamaCpp, VLLM, OpenRouter, Mistral, Groq)
}


def provider(spec: str, *, key: str | None = None, base_url: str | None = None) -> Provider:
    """The provider that ``spec`` names: ``"openai:gpt-5-mini"``, or ``"openai"`` for its model by default.

    Raises:
        ConfigurationError: there is no provider of this name; the message lists those that there are.
    """
    name, _, model = str(spec).partition(":")
    cls = _BY_NAME.get(name.strip().lower())
    if cls is None:
        raise ConfigurationError(
            f"there is no provider {name!r}; write provider:model with one of {', '.join(sorted(_BY_NAME))}"
        )
    return cls(key, model or None, base_url)
