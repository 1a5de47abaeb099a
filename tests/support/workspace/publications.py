"""Publications of a release, in the process of the test."""

from __future__ import annotations

from typing import Any

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec, PublishInputs
from tasks.contracts.runs import Release
from tasks.runs.served_targets import publication
from tasks.worker.process.job import Job, PhaseClock, Rank


def publish_spec(
    store: Store,
    config: Config,
    release: Release,
    only_current: bool = True,
    swap_alone: bool = False,
    take_over: bool = False,
    measured: str | None = None,
) -> JobSpec:
    """The spec of a publication to the only target of the configuration."""
    (target,) = config.publish.targets
    return JobSpec(
        run_key=publication(release.number, target.name),
        span=release.span,
        attempt=1,
        submitted_as=1,
        workspace=store.uri,
        workers=1,
        config=config,
        inputs=PublishInputs(
            target=target.name,
            release=release.number,
            model_version=release.model.version,
            vectors_by=release.model.version,
            vectors=release.vectors_prefix,
            vectors_sha256=release.vectors_sha256,
            model=release.model_prefix,
            model_sha256=release.model_sha256,
            rows=release.rows,
            measured=measured,
            only_current=only_current,
            swap_alone=swap_alone,
            take_over=take_over,
        ),
    )


def publish_job(store: Store, config: Config, release: Release, only_current: bool = True, **more: Any) -> Job:
    return Job(publish_spec(store, config, release, only_current, **more), store, Rank(0, 1, 0), PhaseClock(0.0))
