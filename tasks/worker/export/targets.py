"""The kinds of target. A new kind is a file in this folder and an entry in `TARGETS`; test_recipes names the rest."""

from collections.abc import Callable

from configs.schema.stages import AnyTarget, LancedbTarget, OpensearchTarget, PgvectorTarget, QdrantTarget
from tasks.foundation.errors import ConfigError
from tasks.worker.export.target import Target


def open_target(target: AnyTarget) -> Target:
    """Connect to a target.

    Raises:
        ConfigError: the client is not installed, or the target refuses the credentials.
        StoreError: the target can't be reached.
    """
    try:
        return TARGETS[target.kind](target)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"target {target.name}: {error.name} is not installed where it is published from; "
            f"pip install 'millrace[{target.kind}]'"
        ) from error


def _lancedb(target: AnyTarget) -> Target:
    from tasks.worker.export.lancedb import Lancedb

    assert isinstance(target, LancedbTarget)
    return Lancedb(target)


def _pgvector(target: AnyTarget) -> Target:
    from tasks.worker.export.pgvector import Pgvector

    assert isinstance(target, PgvectorTarget)
    return Pgvector(target)


def _qdrant(target: AnyTarget) -> Target:
    from tasks.worker.export.qdrant import Qdrant

    assert isinstance(target, QdrantTarget)
    return Qdrant(target)


def _opensearch(target: AnyTarget) -> Target:
    from tasks.worker.export.opensearch import Opensearch

    assert isinstance(target, OpensearchTarget)
    return Opensearch(target)


TARGETS: dict[str, Callable[[AnyTarget], Target]] = {
    "lancedb": _lancedb,
    "opensearch": _opensearch,
    "pgvector": _pgvector,
    "qdrant": _qdrant,
}
