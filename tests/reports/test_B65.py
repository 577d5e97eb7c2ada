"""B65: a path in a stored attachment was opened on the server, and the file's content sent to the model."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from ctxstore import Context
from ctxstore.errors import ConfigurationError
from ctxstore.providers import OpenAI

from .scenes import scripted, sent

SECRET = "the content of a file that nobody offered"
_opened: list[str] = []


def _note(event, arguments):
    if event == "open" and arguments and isinstance(arguments[0], str | bytes):
        _opened.append(str(arguments[0]))


sys.addaudithook(_note)


@pytest.fixture
def places(tmp_path):
    """A folder that may be read, beside a file that may not, with a link from the one to the other."""
    root = tmp_path / "uploads"
    (root / "deep").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "uploads-of-others").mkdir()
    (tmp_path / "uploads-of-others" / "secret.txt").write_text(SECRET)
    (root / "good.txt").write_text("offered")
    (root / "deep" / "good.txt").write_text("offered")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "out").symlink_to(tmp_path)
    return root


def stored_with(path, kind="file"):
    """A conversation as it comes from a payload that holds ``path``."""
    ctx = Context(scripted()).user("see this").to_payload()
    part = {"type": kind, "path": path, "media_type": "image/png" if kind == "image" else "text/plain"}
    ctx["messages"][0]["content"] = [{"type": "text", "text": "see this"}, part]
    return ctx


def bad_paths(root):
    up = "../" * 12
    return [
        f"{up}etc/hostname",
        "/etc/hostname",
        str(root.parent / "secret.txt"),
        "../secret.txt",
        "deep/../../secret.txt",
        str(root / ".." / "secret.txt"),
        str(root / "link.txt"),
        "link.txt",
        "out/secret.txt",
        f"{root}-of-others/secret.txt",
        "good.txt\x00.png",
        "file:///etc/hostname",
        "~/.bashrc",
        "",
        str(root),
        "/dev/zero",
        "/proc/self/environ",
    ]


@pytest.mark.parametrize("kind", ["file", "image"])
def test_loading_opens_nothing_and_building_refuses(places, kind):
    for path in bad_paths(places):
        _opened.clear()
        llm = scripted("ok", "ok")
        ctx = Context.restore(stored_with(path, kind), provider=llm, file_roots=[places])
        ctx.to_json()
        assert not [p for p in _opened if path and Path(path).name and p.endswith(Path(path.strip("\x00")).name)], path
        ctx.talk("what is in it?")
        with pytest.raises(ConfigurationError, match=r"path|file"):
            sent(llm.requests[0])
        real = Context.restore(stored_with(path, kind), provider=OpenAI("k"), file_roots=[places])
        with pytest.raises(ConfigurationError):
            real.talk("what is in it?")
        assert len(real) == 1, "and the context is as it was"


def test_under_the_root_it_is_read_when_the_request_is_built(places):
    for path in ("good.txt", "deep/good.txt", str(places / "good.txt")):
        llm = scripted("ok")
        Context.restore(stored_with(path), provider=llm, file_roots=[places]).talk("what is in it?")
        body = json.dumps(sent(llm.requests[0]))
        assert base64.b64encode(b"offered").decode() in body
        bare = Context.restore(stored_with(path), provider=OpenAI("k"))
        with pytest.raises(ConfigurationError, match="file_roots"):
            bare.talk("what is in it?")


def test_trust_ends_with_the_process_that_gave_the_path(store, do, places):
    """What code attached is read; the same path out of the database is a path out of a database."""
    llm = scripted("ok", "ok")
    ctx = do(store, "create", llm)
    secret = places.parent / "secret.txt"
    do(ctx, "talk", ["see this", ctx.local_file(secret)])
    encoded = base64.b64encode(SECRET.encode()).decode()
    assert encoded in json.dumps(sent(llm.requests[0]))
    back = do(store, "load", ctx.id, llm)
    do(back, "talk", "and now?")
    with pytest.raises(ConfigurationError, match=r"secret\.txt"):
        sent(llm.requests[1])


def test_no_table_holds_a_pickle(store, engine):
    ctx = store.create(scripted("ok"), metadata={"a": [1, 2.5, None]}, params={"stop": ["x"]})
    ctx.talk("hi")
    with engine.connect() as c:
        for name in ("ctxstore_contexts", "ctxstore_messages", "ctxstore_in_flight", "ctxstore_usage"):
            table = sa.Table(name, sa.MetaData(), autoload_with=engine)
            assert not [k for k in table.c if isinstance(k.type, sa.LargeBinary | sa.PickleType)]
            for row in c.exec_driver_sql(f"SELECT * FROM {name}"):
                assert not [value for value in row if isinstance(value, bytes | memoryview)]
