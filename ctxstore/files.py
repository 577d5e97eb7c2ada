"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["write_file"]


def write_file(path: Path, text: str) -> None:
    """Replace ``path`` in one step that survives a crash: temporary file, fsync, rename, fsync of the folder."""
    folder = path.absolute().parent
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):
        opened = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
