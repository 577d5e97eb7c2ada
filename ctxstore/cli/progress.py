"""How far a long command is, and how long it will still take: on standard error, so that output can be piped."""

from __future__ import annotations

import sys
import time

__all__ = ["Meter"]


class Meter:
    """Call it with what is done and, when that is known, of how many.

    On a terminal one line is written over and over; elsewhere a line is written every ten seconds, for a log.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._live = sys.stderr.isatty()
        self._begin = time.monotonic()
        self._last = self._begin
        self._shown = 0
        self._first: int | None = None

    def __call__(self, done: int, total: int | None = None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if now - self._last < (0.1 if self._live else 10.0) and not (self._live and done == total):
            return
        self._last = now
        text = self.text(done, total, now - self._begin)
        if self._live:
            sys.stderr.write("\r" + text.ljust(self._shown))
            self._shown = len(text)
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def text(self, done: int, total: int | None, seconds: float) -> str:
        """The line after ``seconds``."""
        if total is None:
            return f"{done:,} {self.what}"
        moved = done - (self._first or 0)
        left = seconds / moved * (total - done) if moved > 0 else None
        share = 100 * done // total if total else 100
        return f"{done:,} of {total:,} {self.what}, {share}%" + ("" if left is None else f", {_clock(left)} left")

    def end(self) -> None:
        """The line is done with."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
