"""A host's project with migrations of its own, thrown away after the test."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from textwrap import dedent

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

ENV = """
import sqlalchemy as sa
from alembic import context
from {models} import Base
from ctxstore.store.migrations import host_hooks

engine = sa.create_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=sa.NullPool)
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, {options})
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
engine.dispose()
"""

MAKO = '''
"""${message}"""
from alembic import op
import sqlalchemy as sa
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}

def upgrade():
    ${upgrades if upgrades else "pass"}

def downgrade():
    ${downgrades if downgrades else "pass"}
'''

MODELS = """
from uuid import UUID
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from ctxstore import HasContext, HasContextLink, new_id

class Base(DeclarativeBase):
    pass

class Ticket(Base):
    __tablename__ = "tickets"
    id: Mapped[int] = mapped_column(primary_key=True)
"""

WITH_CONTEXT = MODELS.replace("class Ticket(Base)", "class Ticket(HasContext, Base)")
WITH_LINK = MODELS.replace("class Ticket(Base)", "class Ticket(HasContextLink, Base)")


class Project:
    """Its folder, its models and its lineage; ``versions`` are other folders that belong to the lineage."""

    def __init__(self, folder: Path, url: str, *, hooks: bool = True, versions: tuple[Path, ...] = ()) -> None:
        self.folder, self.url = folder, url
        self.name = f"host_{folder.name}"
        (folder / "versions").mkdir(parents=True)
        options = "**host_hooks()" if hooks else "compare_type=True"
        (folder / "env.py").write_text(ENV.format(models=self.name, options=options))
        (folder / "script.py.mako").write_text(MAKO)
        self.said = io.StringIO()
        self.config = Config(stdout=self.said)
        self.config.set_main_option("script_location", str(folder))
        self.config.set_main_option("path_separator", "newline")
        places = [folder / "versions", *versions]
        self.config.set_main_option("version_locations", "\n".join(map(str, places)))
        self.config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
        self.models(MODELS)

    def models(self, source: str) -> None:
        """What the host's models are from now on."""
        (self.folder / f"{self.name}.py").write_text(dedent(source))
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        sys.modules.pop(self.name, None)

    def revise(self, message: str, **options: object) -> str:
        """Have a migration written; its text."""
        sys.dont_write_bytecode = True
        command.revision(self.config, message, autogenerate=True, **options)  # type: ignore[arg-type]
        newest = max((self.folder / "versions").glob("*.py"), key=lambda p: p.stat().st_mtime_ns)
        return newest.read_text()

    def upgrade(self, to: str = "head") -> None:
        """Run the migrations."""
        command.upgrade(self.config, to)

    def downgrade(self, to: str) -> None:
        """Take them back."""
        command.downgrade(self.config, to)

    def check(self) -> None:
        """Raise when autogenerate would write anything."""
        command.check(self.config)

    def heads(self) -> list[str]:
        """The heads of the lineage."""
        return list(ScriptDirectory.from_config(self.config).get_heads())

    def close(self) -> None:
        """Leave nothing of it in this process."""
        sys.modules.pop(self.name, None)
        if str(self.folder) in sys.path:
            sys.path.remove(str(self.folder))
