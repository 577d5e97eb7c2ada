"""What an export is written to and read from: a path, or a file that is open."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias

from ..errors import ConfigurationError

__all__ = ["Target", "reading", "writing"]

Target: TypeAlias = str | os.PathLike[str] | BinaryIO


@contextmanager
def writing(file: Target) -> Iterator[BinaryIO]:
    """``file`` open for writing. A path has the whole export in the end or what it had before; a link stays one, a
    file keeps its mode and a new one is its owner's alone. What is no regular file (a device, a pipe) is written to as
    it is.

    Raises:
        ConfigurationError: it cannot be written, or is full. That the reader of a pipe is gone stays a BrokenPipeError.
    """
    try:
        if not isinstance(file, str | os.PathLike):
            yield file
            return
        path = Path(file)
        mode = path.stat().st_mode if path.exists() else None
        with path.open("wb") if mode is not None and not stat.S_ISREG(mode) else _replacing(path, mode) as opened:
            yield opened
    except BrokenPipeError:
        raise
    except OSError as error:
        what = file if isinstance(file, str | os.PathLike) else "the file"
        raise ConfigurationError(f"{what} cannot be written: {error.strerror or error}") from error


@contextmanager
def _replacing(path: Path, mode: int | None) -> Iterator[BinaryIO]:
    path = Path(os.path.realpath(path))
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        if mode is not None:
            Path(temporary).chmod(stat.S_IMODE(mode))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def reading(file: Target, again: bool) -> Iterator[BinaryIO]:
    """``file`` open for reading; with ``again`` it can be read from its beginning once more."""
    if isinstance(file, str | os.PathLike):
        try:
            opened = Path(file).open("rb")  # noqa: SIM115 -- closed below
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
        with opened, reading(opened, again) as found:
            yield found
    elif not again or file.seekable():
        yield file
    else:
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            yield copy
