"""The configuration of publishing: the search services that get every release, and how good their index must be.

No password belongs here: a configuration is stored with every run.
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


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=30, description="what consumers read under")]
Address = Annotated[str, Field(min_length=1), AfterValidator(_without_password)]
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


class LancedbTarget(Record):
    """A LanceDB database. On S3, credentials come from where those of the workspace do."""

    kind: Literal["lancedb"]
    name: Name
    uri: Address = Field(description="a folder, or s3://bucket/prefix")

    @property
    def is_folder(self) -> bool:
        """Whether it is on the machine of the worker."""
        return "://" not in self.uri


class PgvectorTarget(Record):
    """A Postgres database with the extension `vector`."""

    kind: Literal["pgvector"]
    name: Name
    dsn: Address = Field(description="postgresql://user@host/database, without a password")
    password_env: str | None = Field(
        default=None,
        pattern=_VARIABLE,
        description="the environment variable with the password; null: PGPASSWORD, or what libpq finds",
    )

    @property
    def is_folder(self) -> bool:
        """Return False: a database is a server's."""
        return False


class QdrantTarget(Record):
    """A Qdrant server, or Qdrant's local mode in a folder."""

    kind: Literal["qdrant"]
    name: Name
    url: Address = Field(description="http://host:6333, or a folder")
    api_key_env: str | None = Field(
        default=None, pattern=_VARIABLE, description="the environment variable with the API key"
    )

    @property
    def is_folder(self) -> bool:
        """Whether it is Qdrant's local mode, on the machine of the worker."""
        return "://" not in self.url


AnyTarget = Annotated[LancedbTarget | PgvectorTarget | QdrantTarget, Field(discriminator="kind")]
KINDS: dict[str, type[Record]] = {"lancedb": LancedbTarget, "pgvector": PgvectorTarget, "qdrant": QdrantTarget}


class PublishConfig(StageConfig):
    """The services to which each release is brought. Where and how is not the work of a run: no part of its key."""

    targets: tuple[AnyTarget, ...] = ()
    min_recall: Share = Field(default=0.95, description="recall@10 of a target's index, compared with exact search")

    @field_validator("targets")
    @classmethod
    def _names_differ(cls, targets: tuple[AnyTarget, ...]) -> tuple[AnyTarget, ...]:
        names = [target.name for target in targets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two targets are named {twice[0]}; consumers read under that name")
        return targets
