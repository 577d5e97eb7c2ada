"""The verbs of ``Store`` for payloads that move: to a newer version, to another database, in from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from .. import clock
from . import bulk, targets, transfer, verify
from .bulk import Migration, Progress
from .rows import own_targets
from .running import Runner
from .targets import Target
from .transfer import Export, Import
from .verify import Verification

__all__ = ["Moving"]


class Moving:
    """The part of ``Store`` for operators."""

    _runner: Runner

    def migrate_payloads(
        self, *, dry_run: bool = False, batch: int = 500, pause: float = 0.0, progress: Progress | None = None
    ) -> Migration:
        """Move every saved payload up to this program's version, while others read and write.

        ``batch`` rows are written in each short transaction, ``pause`` seconds pass between two of them, and
        ``progress`` is called with the rows done and their total. What cannot be read is left as it is and stands in
        ``.refused``; a run that was killed is begun again and does what is left. Tokens and revisions stay: whoever
        holds a live context goes on with it.

        Raises:
            StoreUnavailableError: the database cannot be reached; batches before are done.
        """
        return self._runner.drive(
            bulk.migrate(own_targets(), dry_run=dry_run, batch=batch, pause=pause, progress=progress)
        )

    async def amigrate_payloads(
        self, *, dry_run: bool = False, batch: int = 500, pause: float = 0.0, progress: Progress | None = None
    ) -> Migration:
        """``migrate_payloads`` for asyncio."""
        return await self._runner.adrive(
            bulk.migrate(own_targets(), dry_run=dry_run, batch=batch, pause=pause, progress=progress)
        )

    def payload_versions(self) -> list[tuple[str, int | None, int]]:
        """Table, payload version and number of rows, for each that there is; None where a row does not say one."""
        return self._runner.run(bulk.count_versions)

    async def apayload_versions(self) -> list[tuple[str, int | None, int]]:
        """``payload_versions`` for asyncio."""
        return await self._runner.arun(bulk.count_versions)

    # -- export and import

    def export_to(
        self,
        file: Target,
        *,
        owner: str | None = None,
        ids: Sequence[UUID | str] | None = None,
        progress: Progress | None = None,
    ) -> Export:
        """Write conversations with their whole history and their ledger to ``file``, a line each (JSON Lines, UTF-8).

        Without ``owner`` and ``ids`` it is the whole database, with the ledger of deleted conversations; memory does
        not grow with their number. A path is replaced when the export is whole, a new file is its owner's alone (mode
        0600), a device or a pipe is written to as it is; ``progress`` gets contexts done and their total.

        Raises:
            ContextNotFoundError: one of ``ids`` is not there, or another owner's.
            ConfigurationError: the file cannot be written, or the disk is full.
        """
        with targets.writing(file) as out:
            return self._runner.drive(transfer.export(out.write, owner, _ids(ids), progress))

    async def aexport_to(
        self,
        file: Target,
        *,
        owner: str | None = None,
        ids: Sequence[UUID | str] | None = None,
        progress: Progress | None = None,
    ) -> Export:
        """``export_to`` for asyncio; the file itself is written as it is."""
        with targets.writing(file) as out:
            return await self._runner.adrive(transfer.export(out.write, owner, _ids(ids), progress))

    def import_from(
        self,
        file: Target,
        *,
        owner: str | None = None,
        atomic: bool = False,
        max_line: int = transfer.MAX_LINE,
        progress: Callable[[int], object] | None = None,
    ) -> Import:
        """Add the conversations of an export, or of saved payloads of any version, one a line; ids are kept.

        The same file again adds nothing. An id that is here with another content is a clash: reported, not merged.
        ``owner`` is given to payloads, which have none. With ``atomic`` it is one transaction: all of it or nothing.

        Raises:
            TransferError: a line (``.line``) cannot be read; what came before it is imported, but with ``atomic`` not.
            ConfigurationError: the file cannot be read.
        """
        with targets.reading(file, atomic) as opened:
            return self._runner.drive(transfer.import_(opened, owner, atomic, max_line, progress))

    async def aimport_from(
        self,
        file: Target,
        *,
        owner: str | None = None,
        atomic: bool = False,
        max_line: int = transfer.MAX_LINE,
        progress: Callable[[int], object] | None = None,
    ) -> Import:
        """``import_from`` for asyncio; the file itself is read as it is."""
        with targets.reading(file, atomic) as opened:
            return await self._runner.adrive(transfer.import_(opened, owner, atomic, max_line, progress))

    # -- verifying

    def verify(
        self, *, repair: bool = False, against: Moving | None = None, progress: Progress | None = None
    ) -> Verification:
        """Read every row as a load would; hold positions, pairs, revisions, projections and the ledger to each other.

        With ``repair`` projections are written anew, and nothing else. ``against`` another store: what is missing
        there, added, or different, by the hash of each conversation. ``progress`` gets contexts done and their total.

        ``.findings`` has what is wrong, by id, ``.open`` what of it is not repaired, ``.digest`` one hash for it all.
        """
        return verify.run(self._runner, repair, None if against is None else against._runner, progress)

    async def averify(
        self, *, repair: bool = False, against: Moving | None = None, progress: Progress | None = None
    ) -> Verification:
        """``verify`` for asyncio."""
        return await verify.arun(self._runner, repair, None if against is None else against._runner, progress)


def _ids(ids: Sequence[UUID | str] | None) -> list[UUID] | None:
    return None if ids is None else [clock.parse_id(i) for i in ids]
