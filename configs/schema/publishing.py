"""The configuration of publishing: the search services that get every release, and the required recall of their index.

Don't write passwords here: a configuration is stored with every run.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from configs.schema.stages import Share, StageConfig
from tasks.foundation.passwords import holds_password
from tasks.foundation.records import Record


def _without_password(address: str) -> str:
    if holds_password(address):
        raise ValueError("it holds a password; leave it out, and name an environment variable that has it")
    return address


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=30)]
Address = Annotated[str, Field(min_length=1), AfterValidator(_without_password)]
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


class LancedbTarget(Record):
    """A LanceDB database. On S3, it uses the workspace's credentials."""

    kind: Literal["lancedb"] = Field(
        description="`lancedb`: a LanceDB database; on S3 with the workspace's credentials"
    )
    name: Name = Field(description="name under which consumers read")
    uri: Address = Field(description="folder, or s3://bucket/prefix")

    @property
    def is_folder(self) -> bool:
        """True: the database is a folder on the worker's machine."""
        return "://" not in self.uri


class PgvectorTarget(Record):
    """A Postgres database with the extension `vector`."""

    kind: Literal["pgvector"] = Field(description="`pgvector`: a Postgres database with the extension `vector`")
    name: Name = Field(description="name under which consumers read")
    dsn: Address = Field(description="address without a password: postgresql://user@host/database")
    password_env: str | None = Field(
        default=None,
        pattern=_VARIABLE,
        description="environment variable with the password; null: PGPASSWORD, or libpq's own sources",
    )

    @property
    def is_folder(self) -> bool:
        """False: Postgres is a server."""
        return False


class QdrantTarget(Record):
    """A Qdrant server, or Qdrant's local mode in a folder."""

    kind: Literal["qdrant"] = Field(description="`qdrant`: a Qdrant server, or Qdrant's local mode in a folder")
    name: Name = Field(description="name under which consumers read")
    url: Address = Field(description="address, as in http://host:6333, or a folder")
    api_key_env: str | None = Field(
        default=None, pattern=_VARIABLE, description="environment variable with the API key; null: no key"
    )

    @property
    def is_folder(self) -> bool:
        """True: it is Qdrant's local mode, a folder on the worker's machine."""
        return "://" not in self.url


AnyTarget = Annotated[LancedbTarget | PgvectorTarget | QdrantTarget, Field(discriminator="kind")]
KINDS: dict[str, type[Record]] = {"lancedb": LancedbTarget, "pgvector": PgvectorTarget, "qdrant": QdrantTarget}


class PublishConfig(StageConfig):
    """The services that get each release. They don't change a run's model, so they are not part of its key."""

    targets: tuple[AnyTarget, ...] = Field(default=(), description="search services that get each release")
    min_recall: Share = Field(
        default=0.95, description="lowest recall@10 of a target's index, compared with exact search"
    )

    @field_validator("targets")
    @classmethod
    def _names_differ(cls, targets: tuple[AnyTarget, ...]) -> tuple[AnyTarget, ...]:
        names = [target.name for target in targets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two targets are named {twice[0]}; consumers read under that name")
        return targets
