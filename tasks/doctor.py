"""Whether the surroundings are as runs need them, looked at without starting anything: which checks, on what.

How each is made lies in `infra/checkup/`. Nothing is changed, but for a scratch key in the workspace that goes again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from configs.load import load_config
from configs.schema import Config
from infra import prefect_server
from infra.checkup import clock, machine, prefect_api, workspace
from infra.checkup.finding import Check, Finding, Seen, made, made_now
from infra.prefect_server import Server
from infra.store import DirectoryStore, Store
from tasks.contracts import Stage
from tasks.records import Record

_LEAST_GIB = 1.0  # where no configuration says so


class DoctorReport(Record):
    """`millrace doctor`."""

    failed: int
    warned: int
    findings: tuple[Finding, ...]


def examine(uri: str, place: Path | None, overrides: Sequence[str]) -> DoctorReport:
    """Make all checks that apply to this workspace and configuration; none of them raises.

    Where a Prefect server is found, the environment is set for it; so it should be called before Prefect is imported.
    """
    configs: list[Config] = []
    stores: list[Store] = []
    servers: list[Server] = []
    first = [
        made_now(Check("configuration", lambda: _configuration(place, overrides, configs))),
        made_now(Check("server", lambda: prefect_api.reachable(prefect_server.state_home(), servers))),
    ]
    opened = made_now(Check("workspace", lambda: workspace.opened(uri, stores)))
    if not stores:
        first.append(opened)
    for server in servers:
        os.environ.update(prefect_server.client_environment(server))
        import prefect.client.orchestration  # noqa: F401 - here, or the checks' threads wait for each other's imports

    config = configs[0] if configs else None
    rest = made(
        [
            *_of_machine(config, stores),
            *(check for server in servers for check in _of_server(server)),
            *(check for store in stores for check in _of_workspace(store)),
            *_of_aws(uri, config),
        ]
    )
    findings = (*first, *rest)
    failed = sum(finding.outcome == "FAIL" for finding in findings)
    warned = sum(finding.outcome == "warn" for finding in findings)
    return DoctorReport(failed=failed, warned=warned, findings=findings)


def _of_machine(config: Config | None, stores: Sequence[Store]) -> list[Check]:
    least = config.health.min_disk_gib if config else _LEAST_GIB
    folders = [machine.scratch(), *(store.root for store in stores if isinstance(store, DirectoryStore))]
    return [
        Check("python", machine.python),
        Check("versions", machine.pins),
        *(Check("disk", lambda folder=folder: machine.disk(folder, least)) for folder in folders),
    ]


def _of_server(server: Server) -> list[Check]:
    return [
        Check("prefect", prefect_api.versions),
        Check("database", lambda: prefect_api.database(server)),
        Check("workers", prefect_api.workers),
        Check("deployments", prefect_api.deployments),
        Check("waiting runs", prefect_api.waiting),
        Check("clock", lambda: clock.clock("the Prefect server", lambda: clock.date_of_server(server.url))),
    ]


def _of_workspace(store: Store) -> list[Check]:
    return [
        Check("workspace", lambda: workspace.content(store)),
        Check("store", lambda: workspace.promises(store)),
        Check("hosts", lambda: workspace.excluded(store)),
    ]


def _of_aws(uri: str, config: Config | None) -> list[Check]:
    stages = [stage for stage in Stage if config is not None and config.compute_of(stage) == "batch"]
    in_bucket = uri.startswith("s3://")
    if not stages and not in_bucket:
        return []
    from infra.checkup import aws  # boto3, which those with a directory need not wait for

    checks = [Check("credentials", aws.credentials)]
    if in_bucket:
        checks.append(Check("clock", lambda: clock.clock("S3", lambda: aws.date_of_bucket(uri))))
    if config is not None and stages:
        checks.append(Check("batch", lambda: aws.batch(config, stages)))
    return checks


def _configuration(place: Path | None, overrides: Sequence[str], configs: list[Config]) -> Seen:
    configs.append(load_config(place, overrides))
    told = " ".join([str(place or "base.yaml alone"), *(f"--set {override}" for override in overrides)])
    return Seen("ok", f"{told}: lineage {configs[0].lineage}, {configs[0].accelerator}, compute {configs[0].compute}")
