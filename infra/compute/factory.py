"""Makes the runner of a stage: this machine or AWS Batch.

Alone, so that each is loaded only where a stage runs on it.
"""

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.jobs import Runner
from tasks.contracts.stages import Work, compute_of


def make_runner(config: Config, store: Store, stage: Work) -> Runner:
    """Return the runner of a stage for its `compute:`."""
    if compute_of(config, stage) == "batch":
        from infra.compute.batch.runner import BatchRunner  # it loads boto3, which local runs do not need

        return BatchRunner(store, config)
    from infra.compute.local import LocalRunner

    return LocalRunner(store)
