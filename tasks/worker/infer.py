"""infer: embeds every item of the catalogue, partition by partition, each committed on its own.

The workers never communicate: each leases a partition in the workspace, embeds it and writes a note with its counts.
A slow worker gets fewer partitions, and a lost worker's partition is reassigned. Any worker that finds all notes seals
the folder.
"""

import time

from configs.schema.config import Config
from infra.store.base import Conflict
from infra.store.lease import hold
from infra.store.manifest import CorruptFolder, MissingFolder, expect_manifest, read_manifest
from tasks.contracts.jobs import InferInputs
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.runner import report
from tasks.contracts.stages import Stage, compute_of
from tasks.foundation.errors import DataError
from tasks.worker.catalogue.embedder import Embedder
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import EarlierVectors
from tasks.worker.catalogue.shards import Shards
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import load_parts

LEASE_SECONDS = 20.0  # before a lost worker's partition is reassigned
WAIT_SECONDS = 2.0  # between checks of partitions leased by other workers


def run(job: Job) -> InferOutcome:
    """Embed partitions until all are done; return the outcome over all workers.

    Raises:
        DataError: the catalogue has no item.
        CodeError: too many vectors are not finite or not of unit length; nothing is sealed.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, InferInputs)
    if not inputs.catalogue.items:
        raise DataError(f"{job.store.uri}/{inputs.catalogue.prefix} has no live item to embed")
    shards = Shards(job)
    shards.check_earlier()
    if not shards.open():
        return shards.seal()
    config = with_infer_compiler(job.config)
    with open_accelerator(config.accelerator, job.rank, config, config.infer.precision) as accelerator:
        with job.clock.phase("restoring"):
            if inputs.compiled is not None:
                from tasks.worker.training import compile_cache  # made by warmup, with the modules of training

                compile_cache.reuse(accelerator, job.store, inputs.compiled)
            parts = load_parts(job.shared, inputs.model.checkpoint)
            accelerator.to_device(parts.model)
            catalogue = Catalogue(job.store, inputs.catalogue, job.shared)
            earlier = _earlier(job, inputs)
        embedder = Embedder(job, accelerator, parts, catalogue, inputs.model.version, earlier)
        while left := shards.open():
            before = len(left)
            for number in left:
                try:
                    with hold(job.store, shards.lease(number), LEASE_SECONDS) as lease:
                        if not shards.done(number):
                            with job.clock.phase("productive"), embedder.shard(number) as (path, note):
                                shards.commit(number, path, note, lease)
                except Conflict:
                    continue  # another worker has it
                if job.share.index == 0:
                    job.keep(job.clock.read())
                before -= 1
                report("partitions", inputs.catalogue.partitions - before, inputs.catalogue.partitions)
            if before == len(left):
                time.sleep(WAIT_SECONDS)
    return shards.seal()


def _earlier(job: Job, inputs: InferInputs) -> EarlierVectors:
    """Return the earlier vectors; none if their manifest is not the released one, so that all items are embedded."""
    reuse = inputs.reuse
    try:
        if reuse is not None:
            expect_manifest(job.shared, reuse, read_manifest(job.shared, reuse), inputs.reuse_sha256)
    except (MissingFolder, CorruptFolder) as error:
        print(f"all items are embedded again: {error}", flush=True)
        reuse = None
    return EarlierVectors(job.store, reuse, inputs.model.version, job.shared)


def with_infer_compiler(config: Config) -> Config:
    """Return the configuration with the compiler target of infer's machines."""
    if config.batch.infer is None or compute_of(config, Stage.infer) != "batch":
        return config
    return config.model_copy(
        update={"compiler": config.compiler.model_copy(update={"target": config.batch.infer.target})}
    )
