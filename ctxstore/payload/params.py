"""Request parameters that may not be saved: a payload never holds a key, and never says where a request goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigurationError

__all__ = ["check_params"]

# Compared without case, hyphens and underscores: apiKey, api-key and API_KEY are one name.
_SECRET_ENDINGS = (
    "accesskey",
    "accesstoken",
    "apikey",
    "apitoken",
    "authorization",
    "authorizationtoken",
    "authtoken",
    "bearertoken",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "refreshtoken",
    "secret",
    "secretkey",
    "sessiontoken",
)
_SECRET_WORDS = frozenset({"auth", "bearer", "cookie", "key", "setcookie", "token"})
_ADDRESSES = frozenset({"apibase", "baseurl", "defaultheaders", "extraheaders", "headers"})
_NAMES_INSIDE = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})


def check_params(params: Mapping[str, Any], path: str = "params") -> None:
    """Refuse request parameters that must not be in a payload: keys by their name, and where a request goes.

    Raises:
        ConfigurationError: one is called such as ``api_key``, ``token``, ``authorization`` or ``password``, at any
            depth, or ``base_url`` or ``headers``. The message names it and never its value. The names of properties in
            a JSON schema are free.
    """
    for key, value in params.items():
        plain = "".join(c for c in str(key).lower() if c.isalnum())
        if plain in _SECRET_WORDS or plain.endswith(_SECRET_ENDINGS):
            raise ConfigurationError(f"{path}.{key} looks like a secret, and params are saved; give it to the provider")
        if plain in _ADDRESSES:
            raise ConfigurationError(
                f"{path}.{key} says where requests go, and params are saved; give it to the provider"
            )
        if key in _NAMES_INSIDE and isinstance(value, Mapping):
            for name, inner in value.items():
                _check_inside(inner, f"{path}.{key}.{name}")
        else:
            _check_inside(value, f"{path}.{key}")


def _check_inside(value: Any, path: str) -> None:
    if isinstance(value, Mapping):
        check_params(value, path)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_inside(item, f"{path}[{i}]")
