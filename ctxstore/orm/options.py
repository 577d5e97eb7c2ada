"""What ``context_options`` of a record gives: values, names on the record, or functions of it.

A string under a key that takes no text (``provider``, ``tools``, ``store`` ...) names an attribute or method of the
record. Where ``context_options`` is a mapping on the class rather than a method, so does a string under a key that
takes text (``owner``, ``model``, ``mode``, ``instructions``, ``id``), if the class has such an attribute. Functions are
called with the record, methods as they are; ``filter``, ``intercept`` and ``stream`` take functions as they stand.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError
from ..providers.base import Provider
from ..store.options import NewContextOptions
from ..store.store import Store
from ..store.types import check_owner

__all__ = ["Options", "options_of"]

_TEXTS = frozenset({"owner", "model", "mode", "instructions", "id"})
_FUNCTIONS = frozenset({"filter", "intercept", "stream"})
_KNOWN = ({*NewContextOptions.__annotations__} - {"record"}) | {"provider", "owner", "store"}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one record, resolved. ``context`` are those that ``Context`` takes as they are."""

    provider: Provider
    owner: str | None
    store: Store | None
    id: Any
    context: dict[str, Any]


def options_of(record: Any) -> Options:
    """What ``record.context_options`` gives.

    Raises:
        ConfigurationError: it gives no provider, or a key or a name that there is not.
    """
    model = type(record).__name__
    given = record.context_options
    on_class = not callable(given)
    if not on_class:
        given = given()
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{model}.context_options gives {given!r}; it must be a mapping with a provider")
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        raise ConfigurationError(
            f"{model}.context_options has {unknown[0]!r}, which is no option; there are {', '.join(sorted(_KNOWN))}"
        )
    values = {key: _value(record, key, value, on_class) for key, value in given.items()}
    values = {key: value for key, value in values.items() if value is not None}
    provider, store = values.pop("provider", None), values.pop("store", None)
    if not isinstance(provider, Provider):
        raise ConfigurationError(
            f"{model}.context_options must give a provider, such as OpenAI(), under 'provider', not {provider!r}"
        )
    if store is not None and not isinstance(store, Store):
        raise ConfigurationError(f"{model}.context_options must give a Store under 'store', not {store!r}")
    owner = values.pop("owner", None)
    check_owner(owner)
    return Options(provider, owner, store, values.pop("id", None), values)


def _value(record: Any, key: str, value: Any, on_class: bool) -> Any:
    if isinstance(value, str):
        if key in _TEXTS and not (on_class and hasattr(type(record), value)):
            return value
        try:
            found = getattr(record, value)
        except AttributeError as error:
            raise ConfigurationError(
                f"{type(record).__name__}.context_options: {key!r} names {value!r}, which it does not have"
            ) from error
        return found() if inspect.ismethod(found) and key not in _FUNCTIONS else found
    if key in _FUNCTIONS:
        return value
    if inspect.ismethod(value):
        return value()
    if inspect.isfunction(value) or isinstance(value, functools.partial):
        return value(record)
    return value
