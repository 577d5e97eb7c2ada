"""Files that are damaged, or no export: the line is named, and nothing is kept that a store does not write."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxstore import Store
from ctxstore.errors import TransferError

from .transfers import PEAK, exported, imported


def line_of(data: bytes, number: int) -> bytes:
    return data.splitlines(keepends=True)[number - 1]


def _cut_in_a_line(data: bytes) -> tuple[bytes, int, str]:
    return data[: len(line_of(data, 1)) + 500], 2, "cut"


def _cut_between(data: bytes) -> tuple[bytes, int, str]:
    return b"".join(data.splitlines(keepends=True)[:3]), 3, "cut"


def _line_missing(data: bytes) -> tuple[bytes, int, str]:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[:2] + lines[3:]), 6, "missing"


def _ledger_missing(data: bytes) -> tuple[bytes, int, str]:
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if b',"ledger":' not in line), 6, "1 ledgers, there are 0"


def _changed(data: bytes) -> tuple[bytes, int, str]:
    lines = data.splitlines(keepends=True)
    return lines[0] + lines[1].replace(b'"role"', b'"rolf"', 1) + b"".join(lines[2:]), 2, "hash"


def _other_encoding(data: bytes) -> tuple[bytes, int, str]:
    lines = data.splitlines(keepends=True)
    return lines[0] + b'{"ctxstore_export":1,"x":"\xe4\xf6"}\n', 2, "UTF-8"


def _sixteen(data: bytes) -> tuple[bytes, int, str]:
    return data.decode().encode("utf-16"), 1, "UTF-16"


def _no_export(data: bytes) -> tuple[bytes, int, str]:
    return b"id,owner\n1,team-7\n", 1, "no line of an export"


def _other_json(data: bytes) -> tuple[bytes, int, str]:
    return line_of(data, 1) + b'{"a": 1}\n', 2, "no saved context"


def _newer_form(data: bytes) -> tuple[bytes, int, str]:
    return line_of(data, 1) + b'{"ctxstore_export":2}\n', 2, "only 1 can be read"


def _newer_payload(data: bytes) -> tuple[bytes, int, str]:
    return line_of(data, 1) + b'{"schema_version":99}\n', 2, "newer"


def _sealed_nonsense(data: bytes) -> tuple[bytes, int, str]:
    body = line_of(data, 2).rsplit(b',"hash":', 1)[0].replace(b'"revision":', b'"revision":"x","was":', 1)
    seal = hashlib.sha256(body).hexdigest().encode()
    return line_of(data, 1) + body + b',"hash":"' + seal + b'"}\n', 2, "column"


def _empty(data: bytes) -> tuple[bytes, int, str]:
    return b"", 0, "empty"


BAD = [
    _cut_in_a_line,
    _cut_between,
    _line_missing,
    _ledger_missing,
    _changed,
    _other_encoding,
    _sixteen,
    _no_export,
    _other_json,
    _newer_form,
    _newer_payload,
    _sealed_nonsense,
    _empty,
]


@pytest.mark.parametrize("spoil", BAD)
def test_a_bad_file_names_its_line(
    origin: Store, store: Store, spoil: Callable[[bytes], tuple[bytes, int, str]]
) -> None:
    data, number, word = spoil(exported(origin))
    with pytest.raises(TransferError, match=word) as caught:
        imported(store, data, atomic=True)
    assert caught.value.line == number and "nothing was imported" in str(caught.value)
    assert store.list(archived=None) == [], "all or nothing, as told"
    with pytest.raises(TransferError, match=word) as caught:
        imported(store, data)
    assert caught.value.line == number and (number == 0 or f"line {number}" in str(caught.value))
    assert caught.value.imported == len(store.list(archived=None)), "what came before is there, as told"
    good = exported(origin)
    assert imported(store, good).imported == 5 - caught.value.imported
    assert exported(store) == good


@pytest.mark.databases("sqlite")
def test_a_line_that_is_too_long(origin: Store, store: Store) -> None:
    data = exported(origin)
    with pytest.raises(TransferError, match="longer than") as caught:
        imported(store, data, max_line=1_000)
    assert caught.value.line == 1
    long = line_of(data, 1) + b'{"ctxstore_export":1,"x":"' + b"x" * 3_000_000
    with pytest.raises(TransferError, match="line 2 is longer than 1,000,000 bytes"):
        imported(store, long, max_line=1_000_000)


@pytest.mark.databases("sqlite")
def test_a_line_of_a_gigabyte_is_not_taken_into_memory(url: str, tmp_path: Path) -> None:
    """What does not begin as it must is refused before it is read to its end."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(b"x")
        file.truncate(10**9)
    code = (
        "import sys; from ctxstore import Store; from ctxstore.errors import TransferError\n"
        "s = Store(sys.argv[1]); base = peak()\n"
        "try: s.import_from(sys.argv[2])\n"
        "except TransferError as e: print(e.line, peak() - base)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PEAK + code, url, str(path)], check=True, capture_output=True, text=True
    )
    line, kilobytes = map(int, done.stdout.split())
    assert line == 1 and kilobytes < 60_000
