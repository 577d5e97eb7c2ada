"""Local files: which are read when a request is built, and which never."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from ctxstore import errors, new_id
from ctxstore.messages import ImagePart, Message
from ctxstore.providers import OpenAI
from ctxstore.providers.base import ModelRequest

LLM = OpenAI("k")


def sent(llm: OpenAI, message: Message, **fields: Any) -> Any:
    request = ModelRequest("m", (message,), new_id(), "completions", False, **fields)
    return json.loads(llm.build(request).body)["messages"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    made.mkdir()
    (made / "a.png").write_bytes(b"PNG")
    (tmp_path / "secret.txt").write_text("top secret")
    return made


def image(path: object) -> Message:
    return Message.new("user", [ImagePart(type="image", path=str(path), media_type="image/png")])


PNG = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(b'PNG').decode()}"}}]


def test_a_path_that_code_gave_is_read(folder: Path) -> None:
    message = image(folder / "a.png")
    assert sent(LLM, message, trusted=frozenset([message.id]))[0]["content"] == PNG
    gone = image(folder / "gone.png")
    with pytest.raises(errors.ConfigurationError, match=r"gone\.png"):
        sent(LLM, gone, trusted=frozenset([gone.id]))
    with pytest.raises(errors.ConfigurationError):
        sent(LLM, image(folder), trusted=frozenset())


def test_a_path_that_a_payload_gave_is_read_under_a_root_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B65."""
    (folder / "inside.png").symlink_to(folder / "a.png")
    (folder / "outside.png").symlink_to(folder.parent / "secret.txt")
    (folder / "up").symlink_to(folder.parent)
    monkeypatch.chdir(folder.parent)
    roots = {"file_roots": (folder,)}
    for good in ("a.png", folder / "a.png", "inside.png", "files/a.png"):
        assert sent(LLM, image(good), **roots)[0]["content"] == PNG
    bad = ["../secret.txt", "/etc/hostname", folder.parent / "secret.txt", "outside.png", "up/secret.txt", "secret.txt"]
    bad += [folder / ".." / "secret.txt", folder, ".", "", "gone.png", "a\x00.png", "~/a.png", "file:///etc/hostname"]
    for path in bad:
        for options in (roots, {}):
            with pytest.raises(errors.ConfigurationError, match=r"messages\[0\]\.content\[0\]"):
                sent(LLM, image(path), **options)
    with pytest.raises(errors.ConfigurationError):
        sent(LLM, image(folder / "a.png"))
