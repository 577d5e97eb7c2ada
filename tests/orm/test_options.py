"""``context_options``: values, names on the record, functions of it; inherited, and refused when they cannot work."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ctxstore import Context, HasContext, HasContextColumn, Store, ToolPolicy, tool
from ctxstore.errors import ConfigurationError
from ctxstore.testing import ScriptedProvider


class Base(DeclarativeBase):
    pass


@tool
def lookup(sku: str) -> str:
    """Look it up."""
    return sku


class Ticket(HasContext, Base):
    __tablename__ = "tickets"
    id: Mapped[int] = mapped_column(primary_key=True)
    team: Mapped[str] = mapped_column(sa.String(20), default="team-7")
    given = None

    def context_options(self) -> Any:
        return self.given

    @property
    def llm(self) -> ScriptedProvider:
        return ScriptedProvider(["pong"], model=f"{self.team}-model")

    def make_llm(self) -> ScriptedProvider:
        return self.llm

    def my_tools(self) -> list[Any]:
        return [lookup]

    def redact(self, message: Any) -> Any:
        return message.model_copy(update={"content": "***"})


def context(given: Any) -> Context:
    row = Ticket(team="team-7")
    row.given = given
    return row.context


LLM = ScriptedProvider([])


@pytest.mark.parametrize(
    "provider",
    [
        "llm",
        "make_llm",
        lambda ticket: ticket.llm,
        functools.partial(lambda name, ticket: getattr(ticket, name), "llm"),
    ],
    ids=["attribute", "method", "function", "partial"],
)
def test_a_provider_by_value_name_or_function(provider: Any) -> None:
    assert context({"provider": provider}).model == "team-7-model"


def test_everything_that_a_context_takes() -> None:
    ctx = context(
        {
            "provider": LLM,
            "model": "llm",  # text is text, although the record has such an attribute
            "tools": "my_tools",
            "tool_policy": ToolPolicy(allow=["lookup"]),
            "instructions": "team",
            "metadata": lambda ticket: {"team": ticket.team},
            "params": {"temperature": 0.2},
            "filter": "redact",
            "owner": "llm",
            "retry_budget": 2,
            "schema": None,
        }
    )
    assert (ctx.model, ctx.instructions, ctx.state.owner) == ("llm", "team", "llm")
    assert [t.name for t in ctx.tools] == ["lookup"]
    assert (ctx.metadata, ctx.params, ctx.retry_budget) == ({"team": "team-7"}, {"temperature": 0.2}, 2)
    assert isinstance(ctx.record, Ticket)
    ctx.provider.replies.append("pong")  # type: ignore[attr-defined]
    ctx.talk("my number is 5")
    assert ctx.messages[0].text == "***"


def test_a_mapping_on_the_class_and_its_subclasses() -> None:
    class Root(DeclarativeBase):
        pass

    class Chat(HasContext, Root):
        __tablename__ = "chats"
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str] = mapped_column(sa.String(20))
        team: Mapped[str] = mapped_column(sa.String(20), default="team-7")
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "chat"}
        context_options = {"provider": "set_provider", "owner": "team", "model": "big", "tools": lambda chat: [lookup]}  # type: ignore[assignment]

        def set_provider(self) -> ScriptedProvider:
            return ScriptedProvider([])

    class Small(Chat):
        __mapper_args__ = {"polymorphic_identity": "small"}

        def set_provider(self) -> ScriptedProvider:
            return ScriptedProvider([], context_window=7)

    ctx = Small(team="a").context
    assert (ctx.state.owner, ctx.model, ctx.context_window) == ("a", "big", 7)
    assert Chat(team="b").context.context_window is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "must give a provider"),
        (None, "must be a mapping"),
        ({"provider": None}, "must give a provider"),
        ({"provider": "openai"}, "'openai'"),
        ({"provider": object()}, "must give a provider"),
        ({"provider": LLM, "toolz": []}, "'toolz'"),
        ({"provider": LLM, "record": 1}, "'record'"),
        ({"provider": LLM, "tools": "no_such_method"}, "'no_such_method'"),
        ({"provider": LLM, "store": object()}, "must give a Store"),
        ({"provider": LLM, "owner": "x" * 192}, "191"),
        ({"provider": LLM, "params": {"api_key": "sk-1"}}, "api_key"),
    ],
)
def test_what_cannot_work_is_named(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        context(given)


def test_a_class_without_options_says_what_is_missing() -> None:
    class Root(DeclarativeBase):
        pass

    class Silent(HasContextColumn, Root):
        __tablename__ = "silent"
        __context_column__ = "data"
        id: Mapped[int] = mapped_column(primary_key=True)
        data: Mapped[str | None] = mapped_column(sa.Text)

    with pytest.raises(ConfigurationError, match=r"Silent\.context_options"):
        Silent().context


def test_a_store_is_taken_by_name_too() -> None:
    with Store("sqlite://") as store:
        Ticket.shop = store  # type: ignore[attr-defined]
        assert context({"provider": "llm", "store": "shop"}).model == "team-7-model"
