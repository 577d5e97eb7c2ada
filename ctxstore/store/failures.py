"""What a database's error means here, and whether to run the transaction again.

Every function that writes decides by reading what stands there, so running it again is always right.
"""

from __future__ import annotations

import random
import time

import sqlalchemy.exc as sa_exc

from ..errors import ConfigurationError, CtxstoreError, DatabaseNotUpgradedError, StoreError, StoreUnavailableError

__all__ = ["Patience", "error_code", "hung_up", "is_foreign"]

_CONFLICTS = {"40001", "40P01", "55P03", "57014", "1020", "1205", "1213"}
_NOT_UPGRADED = {"42P01", "42703", "1146", "1054"}
_SETUP = {"28000", "28P01", "3D000", "1044", "1045", "1049"}
_FORBIDDEN = {"42501", "25006", "1142", "1143", "1227", "1290", "1792", "1836"}
_CUT = {"57P01", "57P02", "57P03", "1040", "1053", "1077", "1079", "1080", "1129", "1152", "1203", "1927"}
_CUT_CLASSES = ("08", "53", "58")  # of SQLSTATE: the connection, the server's resources, the system below it
_SQLITE_CUT = {7, 9, 10, 11, 13, 14, 15, 26}
"""SQLite's codes of memory, interrupts, input and output, corruption, a full disk, opening, locks, and no database."""
_SQLITE_MISSING = ("no such table", "no such column", "has no column named")
_SQLITE_FILE = ("unable to open database file", "attempt to write a readonly database")
_SETUP_TEXTS = (
    "authentication failed",
    "no pg_hba.conf entry",
    '" does not exist',
)  # psycopg gives no code on connecting
_DRIVERS = {"aiomysql", "aiosqlite", "asyncmy", "asyncpg", "psycopg", "pymysql", "sqlite3"}


class Patience:
    """How often one transaction is run again: a few times within ``seconds``, once over a lost connection."""

    def __init__(self, seconds: float = 5.0, tries: int = 12) -> None:
        self._until = time.monotonic() + seconds
        self._tries = tries
        self._lost = 0

    def wait(self, error: Exception) -> float:
        """Seconds to wait before the next try.

        Raises:
            StoreUnavailableError: the database cannot be reached, or was busy for too long.
            DatabaseNotUpgradedError: a table or column is missing.
            ConfigurationError: the server does not let this user in, or do that, has no such database, or the file no
                folder.
            StoreError: anything else that the database refused.
        """
        self._tries -= 1
        again = self._tries > 0 and time.monotonic() < self._until
        code, text = error_code(error), _text(error)
        if code in _NOT_UPGRADED or any(m in text for m in _SQLITE_MISSING):
            raise DatabaseNotUpgradedError(f"{DatabaseNotUpgradedError.__doc__} ({text})") from error
        if isinstance(error, sa_exc.ArgumentError):
            raise ConfigurationError(f"this database URL cannot be used: {text}") from error
        if any(m in text for m in _SQLITE_FILE):
            raise ConfigurationError(
                f"the database file cannot be opened: its folder is not there, or may not be written ({text})"
            ) from error
        if code in _FORBIDDEN:
            raise ConfigurationError(f"the database does not let this user do that: {text}") from error
        if code in _SETUP or ("FATAL" in text and any(m in text for m in _SETUP_TEXTS)):
            raise ConfigurationError(f"the database does not let this program in: {text}") from error
        if isinstance(error, sa_exc.IntegrityError) and self._lost < 2 and again:
            self._lost += 1  # a row that another try, or another writer, put there: the next run reads it
            return 0.0
        if code in _CONFLICTS or _busy(text):
            if again:
                return random.uniform(0.005, 0.05)
            raise StoreUnavailableError(f"the database was busy for too long; try again ({text})") from error
        if _unreachable(error, code):
            if self._lost < 1 and again:
                self._lost += 1
                return 0.0
            raise StoreUnavailableError(f"the database cannot be reached; try again ({text})") from error
        raise StoreError(f"the database refused this: {text}") from error


def hung_up(error: CtxstoreError) -> bool:
    """Whether ``error`` came of a connection that the server closed on what it was sent."""
    cause = error.__cause__
    lost = isinstance(cause, sa_exc.DBAPIError) and cause.connection_invalidated
    return lost or (isinstance(cause, Exception) and error_code(cause) in ("2006", "2013"))


def is_foreign(error: Exception) -> bool:
    """Whether ``error`` is a database's or a driver's, and not ours or a bug."""
    if isinstance(error, CtxstoreError):
        return False
    # asyncpg's errors on connecting are its own, past SQLAlchemy's, and so is what a driver cannot encode
    passed = sa_exc.SQLAlchemyError | OSError | UnicodeEncodeError | OverflowError
    return isinstance(error, passed) or type(error).__module__.partition(".")[0] in _DRIVERS


def error_code(error: Exception) -> str:
    """The SQLSTATE of ``error``, or MySQL's number; empty when it has neither."""
    orig = getattr(error, "orig", None) or error
    args = orig.args
    if args and type(args[0]) is int:  # MySQL's number says more than the SQLSTATE beside it
        return str(args[0])
    return str(getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None) or "")


def _text(error: Exception) -> str:
    orig = getattr(error, "orig", None)
    return " ".join(str(orig if orig is not None else error).split())[:300]


def _busy(text: str) -> bool:
    return "database is locked" in text or "table is locked" in text or "database schema is locked" in text


def _unreachable(error: Exception, code: str) -> bool:
    if isinstance(error, OSError | sa_exc.TimeoutError) or code in _CUT or code.startswith(_CUT_CLASSES):
        return True
    if isinstance(error, sa_exc.DBAPIError) and error.connection_invalidated:
        return True
    if not isinstance(error, sa_exc.OperationalError | sa_exc.InterfaceError):
        return False
    orig = error.orig
    if type(orig).__module__.partition(".")[0] in ("sqlite3", "aiosqlite"):
        found: int | None = getattr(orig, "sqlite_errorcode", None)  # none where a value cannot be made a text
        return "decode" not in str(orig) if found is None else found & 0xFF in _SQLITE_CUT
    return not code or (len(code) == 4 and code.startswith("2"))  # of the driver, not of the server
