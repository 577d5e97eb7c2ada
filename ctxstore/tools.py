"""Tools: functions that a model may ask for, with a schema made from their signature.

Arguments are validated against the signature before a tool runs; an argument string that does not parse is answered
with an error in the conversation, never with an exception in the caller.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

from pydantic import ConfigDict, Field, ValidationError, create_model

from .errors import ConfigurationError, UnsupportedValueError
from .messages import ToolCall, ToolResult
from .prompts import plain

__all__ = ["Tool", "as_tools", "tool"]

_NAME = re.compile("[A-Za-z0-9_-]{1,64}")


class Tool:
    """A function that a model may call.

    ``name`` and ``description`` are what the model reads, ``parameters`` the JSON schema of the arguments. It stays
    callable as the plain function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"providers take no tool called {self.name!r}: a name is 1 to 64 letters of ASCII, digits, _ and -; "
                "give it one with @tool(name=...)"
            )
        self.description = description if description is not None else inspect.getdoc(function) or ""
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)
        )
        self._parameters = dict(parameters) if parameters is not None else None
        functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @functools.cached_property
    def _model(self) -> Any:
        fields: dict[str, Any] = {}
        try:
            signature = inspect.signature(self.function, eval_str=True)
        except (NameError, ValueError, TypeError) as error:
            raise ConfigurationError(f"the signature of the tool {self.name!r} cannot be read: {error}") from error
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigurationError(
                    f"the tool {self.name!r} takes {parameter}; give every parameter a name that the model can use"
                )
            kind = Any if parameter.annotation is parameter.empty else parameter.annotation
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[f"field_{parameter.name}"] = (kind, Field(default, alias=parameter.name))
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        return create_model(str(self.name), __config__=config, **fields)

    @functools.cached_property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object."""
        if self._parameters is not None:
            return self._parameters
        try:
            schema: dict[str, Any] = self._model.model_json_schema(by_alias=True)
        except Exception as error:
            raise ConfigurationError(
                f"the tool {self.name!r} has a parameter without a JSON schema: {error}"
            ) from error
        schema.pop("title", None)
        for entry in schema.get("properties", {}).values():
            entry.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    def validate(self, call: ToolCall) -> tuple[dict[str, Any] | None, str | None]:
        """The keyword arguments for ``call`` in the types of the signature, or None and what is wrong with them."""
        arguments = call.arguments
        if arguments is None:
            return None, f"the arguments are no JSON object: {call.arguments_json:.200}"
        if self._parameters is not None:
            return arguments, None
        try:
            checked = self._model.model_validate(arguments)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            return None, "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in found)
        return {str(f.alias): getattr(checked, name) for name, f in type(checked).model_fields.items()}, None

    def answer(self, call: ToolCall, value: Any) -> ToolResult:
        """The result of ``call``; a value that JSON cannot hold becomes an error that says where it stands."""
        try:
            return ToolResult.of(call, plain(value, f"the result of {self.name}"))
        except UnsupportedValueError as error:
            return failed(call, error)


def failed(call: ToolCall, error: BaseException | str, kind: str | None = None) -> ToolResult:
    """The result that tells the model that ``call`` did not succeed."""
    message = str(error).encode("utf-8", "replace").decode()
    return ToolResult(
        type="tool_result",
        id=call.id,
        name=call.name,
        value={"error": True, "type": kind or type(error).__name__, "message": message},
        error=True,
    )


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, parameters: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Any:
    """Make a function a tool: its name, its docstring and its signature are what the model sees.

    ``parameters`` gives a JSON schema in place of the signature's; arguments are then passed as they come.
    """
    if function is not None:
        return Tool(function)
    return lambda f: Tool(f, name=name, description=description, parameters=parameters)


def as_tools(tools: Tool | Callable[..., Any] | Iterable[Tool | Callable[..., Any]] | None) -> tuple[Tool, ...]:
    """``tools`` as a tuple: none, one or many; plain functions become tools.

    Raises:
        ConfigurationError: two have one name, or one is no function.
    """
    if tools is None:
        return ()
    many = [tools] if isinstance(tools, Tool) or callable(tools) else list(tools)
    out: list[Tool] = []
    for item in many:
        if not isinstance(item, Tool) and not callable(item):
            raise ConfigurationError(f"a tool must be a function or a Tool, not {item!r}")
        out.append(item if isinstance(item, Tool) else Tool(item))
    names = [t.name for t in out]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"two tools are called {name!r}; give one another name with @tool(name=...)")
    return tuple(out)
