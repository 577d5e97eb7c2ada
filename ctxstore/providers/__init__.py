"""Providers: who answers a conversation. Each is one account at one server, shared by any number of contexts."""

from __future__ import annotations

from .presets import VLLM, XAI, ZAI, DeepSeek, Groq, LlamaCpp, Mistral, Ollama, OpenAI, OpenRouter, provider

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
