"""Select and run the checks of `millrace doctor`, and report them.

They start nothing, and change nothing except for a scratch key in the workspace, which they delete.
"""

import email.utils
import os
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from urllib.error import HTTPError

import boto3.session
from botocore.config import Config as Network
from botocore.exceptions import ClientError

from configs.load import load_config
from configs.schema.config import Config
from infra import prefect_health, prefect_server
from infra.compute.batch.api import NOT_ACCEPTED, Api, WaitPolicy
from infra.compute.batch.job import check_queue, definition_of
from infra.deployments import Source
from infra.prefect_health import HOST
from infra.prefect_server import Server
from infra.store.aws import NO_CREDENTIALS, code_of
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.factory import scheme_of
from tasks.contracts.stages import Stage, compute_of
from tasks.doctor import checks, prefect_api
from tasks.doctor.checks import Check, CheckResult, Finding, run_check, run_checks
from tasks.foundation.errors import one_line
from tasks.foundation.records import Record
from tasks.foundation.s3_path import whole
from tasks.runs.catalogues import on_cpu_queue

_HURRIED = Network(retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=4, read_timeout=4)
_BATCH_SECONDS = 8.0
_SIGN_IN = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives them"


def credentials() -> CheckResult:
    """Check the identity that AWS sees."""
    try:
        session = boto3.session.Session()
        region = session.region_name or "us-east-1"  # any will do
        me = session.client("sts", region_name=region, config=_HURRIED).get_caller_identity()
    except NO_CREDENTIALS as error:
        return CheckResult("FAIL", f"no usable AWS credentials: {one_line(error)}", _SIGN_IN)
    except Exception as error:  # denied, STS not reachable, or an endpoint that serves only S3
        if code_of(error) in NOT_ACCEPTED:
            return CheckResult(
                "FAIL", f"AWS does not accept them: {one_line(error)}", "sign in again, or correct the credentials"
            )
        found = f"STS does not say whose they are: {type(error).__name__}: {one_line(error)}"
        return CheckResult("warn", found, "ignore this if all other checks pass")
    return CheckResult("ok", f"{me['Arn']} of account {me['Account']}")


def date_of_bucket(workspace: str) -> str | None:
    """Return the Date header of S3's answer, also of an error.

    Raises:
        BotoCoreError: S3 did not answer, or no credentials exist.
    """
    bucket = workspace.removeprefix("s3://").partition("/")[0]
    try:
        answer = boto3.session.Session().client("s3", config=_HURRIED).list_objects_v2(Bucket=bucket, MaxKeys=1)
    except ClientError as error:
        answer = error.response
    date: str | None = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return date


def batch(config: Config, stages: Sequence[Stage]) -> CheckResult:
    """Check queues and job definitions of stages and refreshes. Raises ConfigError: names the first wrong one."""
    api = Api.connect(WaitPolicy(seconds=_BATCH_SECONDS))
    places = [(stage, config.batch) for stage in stages]
    if Stage.infer in stages and config.batch.refresh_cpu_items:
        places.append((Stage.infer, on_cpu_queue(config).batch))
    found = [check_queue(api, stage, batch, api.definition(definition_of(stage, batch))) for stage, batch in places]
    queues = sorted({queue.name for queue, _ in found})
    return CheckResult("ok", f"queues {' and '.join(queues)} and {len(found)} job definitions in {api.region}")


_STRANGER = "http://millrace.invalid"  # no page has this origin
_OWN = "when no run is on: millrace down, then millrace up"
_ELSEWHERE = "set a password and its origins on that server: docs/operations.md#access"


def access(server: Server) -> CheckResult:
    """Warn of a server without a password, with access for pages of other sites, or with a readable password file."""
    mend = _OWN if server.pid is not None else _ELSEWHERE
    if prefect_health.is_open(server.url):
        return CheckResult("warn", f"{server.url} asks for no password: whoever reaches it can run commands here", mend)
    try:
        if prefect_health.allowed_origin(server.url, _STRANGER) is not None:
            return CheckResult("warn", f"{server.url} lets the pages of any site in a browser ask it", mend)
    except OSError as error:
        return CheckResult("warn", f"{server.url} did not say whose pages may ask it: {error}", "")
    file = prefect_server.file_of_password(Path(server.home))
    if file.exists() and file.stat().st_mode & 0o077:
        return CheckResult("warn", f"others on this machine can read {file}", f"chmod 600 {file}")
    return CheckResult("ok", "the Prefect server asks for its password, and only its own pages may ask it")


WARN_SECONDS, FAIL_SECONDS = 5.0, 60.0
_ANSWER_SECONDS = 5.0


def clock(server: str, read_date: Callable[[], str | None]) -> CheckResult:
    """Compare this clock with the one of `server`; `read_date` returns the Date header of its answer."""
    before = time.time()
    date = read_date()
    after = time.time()
    if date is None:
        return CheckResult("warn", f"the answer of {server} has no Date header, so the clock was not compared")
    theirs = email.utils.parsedate_to_datetime(date).timestamp()
    # The answer was dated between `before` and `after`, and its date is truncated to a second.
    off = before - (theirs + 1) if before > theirs + 1 else after - theirs if after < theirs else 0.0
    found = (
        f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} {server}" if abs(off) >= 1 else f"agrees with {server}"
    )
    mend = "set the clock with chrony or systemd-timesyncd: timedatectl set-ntp true"
    if abs(off) > FAIL_SECONDS:
        return CheckResult("FAIL", f"{found}; leases of this machine end too early or too late", mend)
    return CheckResult("warn" if abs(off) > WARN_SECONDS else "ok", found, mend if abs(off) > WARN_SECONDS else "")


def date_of_server(api_url: str) -> str | None:
    """Return the Date header of the Prefect server's answer, also of an error."""
    direct = [urllib.request.ProxyHandler({})] if f"//{HOST}:" in api_url else []
    try:
        with urllib.request.build_opener(*direct).open(f"{api_url}/health", timeout=_ANSWER_SECONDS) as answer:
            return answer.headers["Date"]
    except HTTPError as error:
        return error.headers["Date"]


_LEAST_GIB = 1.0  # minimum free disk space if the configuration is not readable


class DoctorReport(Record):
    """`millrace doctor`."""

    failed: int
    warned: int
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> "DoctorReport":
        """Return the report of these findings."""
        failed = sum(finding.outcome == "FAIL" for finding in findings)
        warned = sum(finding.outcome == "warn" for finding in findings)
        return cls(failed=failed, warned=warned, findings=tuple(findings))


def examine(uri: str, config_file: PurePath | None, overrides: Sequence[str], new: bool = False) -> DoctorReport:
    """Run all checks for this workspace and configuration; none of them raises.

    If a Prefect server is found, the environment is set for it, so call this before Prefect is imported.

    Args:
        new: create a local workspace that does not exist.
    """
    configs: list[Config] = []
    stores: list[Store] = []
    servers: list[Server] = []
    first = [
        run_check(Check("configuration", lambda: _configuration(config_file, overrides, configs))),
        run_check(Check("server", lambda: prefect_api.reachable(prefect_server.state_home(), servers))),
    ]
    opened = run_check(Check("workspace", lambda: checks.opened(uri, stores, new)))
    if not stores:
        first.append(opened)
    for server in servers:
        os.environ.update(prefect_server.client_environment(server))
        import prefect.client.orchestration  # noqa: F401 - here, so that the checks' threads do not wait for each other's imports

    config = configs[0] if configs else None
    rest = run_checks(
        [
            *_of_machine(config, stores),
            *(check for server in servers for check in _of_server(server)),
            *(_of_deployments(store, config, config_file, overrides) for _ in servers for store in stores if config),
            *(check for store in stores for check in _of_workspace(store)),
            *_of_aws(uri, config),
        ]
    )
    return DoctorReport.of((*first, *rest))


def _of_machine(config: Config | None, stores: Sequence[Store]) -> list[Check]:
    least = config.health.min_disk_gib if config else _LEAST_GIB
    folders = [checks.scratch(), *(store.root for store in stores if isinstance(store, DirectoryStore))]
    return [
        Check("python", checks.python),
        Check("versions", checks.pins),
        *(Check("disk", lambda folder=folder: checks.disk(folder, least)) for folder in folders),
    ]


def _of_server(server: Server) -> list[Check]:
    return [
        Check("access", lambda: access(server)),
        Check("prefect", prefect_api.versions),
        Check("database", lambda: prefect_api.database(server)),
        Check("workers", lambda: prefect_api.workers(server)),
        Check("waiting runs", lambda: prefect_api.waiting(server)),
        Check("clock", lambda: clock("the Prefect server", lambda: date_of_server(server.url))),
    ]


def _of_deployments(store: Store, config: Config, config_file: PurePath | None, overrides: Sequence[str]) -> Check:
    source = Source(
        uri=store.uri,
        config_file=str(whole(config_file)) if config_file else "",
        overrides=tuple(overrides),
        pipeline=config.pipeline,
        lineage=config.lineage,
        cron=config.schedule.cron,
        zone=config.schedule.timezone,
        on_batch=bool(_on_batch(config)),
    )
    return Check("deployments", lambda: prefect_api.deployments(source))


def _of_workspace(store: Store) -> list[Check]:
    return [
        Check("workspace", lambda: checks.content(store)),
        Check("store", lambda: checks.guarantees(store)),
        Check("hosts", lambda: checks.excluded(store)),
    ]


def _on_batch(config: Config) -> list[Stage]:
    return [stage for stage in Stage if compute_of(config, stage) == "batch"]


def _of_aws(uri: str, config: Config | None) -> list[Check]:
    stages = _on_batch(config) if config is not None else []
    in_bucket = scheme_of(uri) == "s3"
    if not stages and not in_bucket:
        return []
    # boto3 is slow to import, and a local workspace does not need it

    checks = [Check("credentials", credentials)]
    if in_bucket:
        checks.append(Check("clock", lambda: clock("S3", lambda: date_of_bucket(uri))))
    if config is not None and stages:
        checks.append(Check("batch", lambda: batch(config, stages)))
    return checks


def _configuration(config_file: PurePath | None, overrides: Sequence[str], configs: list[Config]) -> CheckResult:
    configs.append(load_config(config_file, overrides))
    given = " ".join([str(config_file or "base.yaml alone"), *(f"--set {override}" for override in overrides)])
    return CheckResult(
        "ok", f"{given}: lineage {configs[0].lineage}, {configs[0].accelerator}, compute {configs[0].compute}"
    )
