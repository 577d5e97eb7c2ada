"""Local files for a request: the one place where a path is opened, and where it is decided whether it may be.

A path that code in this process gave is read. A path that came out of a saved conversation was chosen by whoever
could write there: it is read only under a folder that the caller named, symbolic links resolved.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigurationError

__all__ = ["data_url", "media_type_of", "read_file"]


def media_type_of(path: str, given: str | None) -> str:
    """The media type of a file: as given, else by its name."""
    return given or mimetypes.guess_type(path)[0] or "application/octet-stream"


def data_url(data: str, media_type: str) -> str:
    """A ``data:`` URL of base64 ``data``."""
    return f"data:{media_type};base64,{data}"


def read_file(path: str, trusted: bool, roots: Sequence[Path], where: str) -> str:
    """The content of the file at ``path``, in base64.

    Raises:
        ConfigurationError: it is not ``trusted`` and not under one of ``roots``, or it cannot be read. ``where`` names
            the message.
    """
    real = Path(path) if trusted else _allowed(path, roots, where)
    try:
        handle = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if trusted else os.O_NOFOLLOW))
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ConfigurationError(f"{where}: {path!r} is no regular file")
            return base64.b64encode(file.read()).decode()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{where}: the file {path!r} cannot be read: {error}") from error


def _allowed(path: str, roots: Sequence[Path], where: str) -> Path:
    if "\x00" not in path and ".." not in Path(path).parts:
        for root in roots:
            folder = Path(root).resolve()
            for candidate in (folder / path, Path.cwd() / path):
                real = candidate.resolve()
                if real.is_relative_to(folder) and real.is_file():
                    return real
    raise ConfigurationError(
        f"{where}: the path {path!r} came from a saved conversation and is in none of the folders that may be read; "
        "name its folder with Context(..., file_roots=[...]), or attach the file again"
    )
