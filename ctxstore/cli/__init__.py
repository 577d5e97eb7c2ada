"""The command ``ctxstore``, from the extra ``cli``: look at conversations and usage, and keep the database in order.

Exit codes: 0, 1 (the operation failed; one line on standard error), 2 (it was called wrongly).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

_EXTRA = {"typer", "rich", "click"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` (default: the process's own arguments) and return its exit code."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _EXTRA:
            raise
        print("ctxstore: the command needs the extra 'cli': pip install 'ctxstore[cli]'", file=sys.stderr)  # noqa: T201
        return 1
    return run(argv)
