"""B69: one long-lived agent served one user, was pointed at the next, and went on with the first one's conversation."""

from __future__ import annotations

import json

import pytest

from ctxstore import ToolPolicy, new_id, tool
from ctxstore.errors import ContextNotFoundError

from .scenes import asking, scripted, sent, texts

SECRET = "my salary is 81 234"


@tool
def look() -> str:
    """Look."""
    return SECRET


class Agent:
    """What an application keeps for as long as it runs: one provider, one set of tools, one policy."""

    def __init__(self, store, do):
        self.store, self.do = store, do
        self.llm = scripted()
        self.options = {"tools": [look], "tool_policy": ToolPolicy(allow=["look"]), "metadata": {"kind": "helpdesk"}}

    def begin(self, owner):
        return self.do(self.store, "create", self.llm, owner=owner, **self.options)

    def say(self, ctx, text, *replies):
        self.llm.replies += replies
        return self.do(ctx, "talk", text)


def test_the_next_users_request_holds_nothing_of_the_first(store, do):
    agent = Agent(store, do)
    a = agent.begin("A")
    agent.say(a, SECRET, asking("c1"), f"Noted: {SECRET}")
    b = agent.begin("B")
    agent.say(b, "hello", "hi")
    agent.say(a, "more", "yes")
    agent.say(b, "and?", "so")
    to_b = [r for r in agent.llm.requests if r.context_id == b.id]
    assert len(to_b) == 2
    for request in to_b:
        assert SECRET not in json.dumps(sent(request))
    assert a.id != b.id and a.thread_id != b.thread_id
    assert {s.owner: s.id for s in do(store, "list")} == {"A": a.id, "B": b.id}
    assert texts(do(store, "load", b.id, scripted(), owner="B").messages) == ["hello", "hi", "and?", "so"]
    b.metadata = {"changed": True}
    assert a.metadata == {"kind": "helpdesk"} == agent.options["metadata"]


def test_another_owners_context_is_not_found_by_any_verb(store, do):
    agent = Agent(store, do)
    a = agent.begin("A")
    agent.say(a, SECRET, "noted")
    strangers = [
        lambda: do(store, "load", a.id, scripted(), owner="B"),
        lambda: do(store, "get", a.id, owner="B"),
        lambda: do(store, "messages", a.id, owner="B"),
        lambda: do(store, "history", a.id, owner="B"),
        lambda: do(store, "in_flight", a.id, owner="B"),
        lambda: do(store, "export", a.id, owner="B"),
        lambda: do(store, "archive", a.id, owner="B"),
        lambda: do(store, "unarchive", a.id, owner="B"),
        lambda: do(store, "fork", a.id, owner="B"),
        lambda: do(store, "drop_in_flight", a.id, new_id(), owner="B"),
        lambda: do(store, "delete", a.id, owner="B"),
        lambda: do(store, "load", a.id, scripted(), owner=""),
    ]
    for attempt in strangers:
        with pytest.raises(ContextNotFoundError):
            attempt()
    with pytest.raises(ContextNotFoundError):
        with store.lease(a.id, scripted(), owner="B"):
            pass
    assert do(store, "search", "salary", owner="B") == [] and do(store, "list", owner="B") == []
    assert [m.text for m in do(store, "search", "salary", owner="A")] == [SECRET]
    assert do(store, "usage", by=(), owner="B") == [] or do(store, "usage", by=(), owner="B")[0].requests == 0
    assert len(do(store, "load", a.id, scripted(), owner="A").messages) == 2, "and it is as it was"
