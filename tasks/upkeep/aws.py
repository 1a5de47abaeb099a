"""Checks of AWS: credentials, the clock of S3, the queues and job definitions of Batch.

A denied `GetCallerIdentity` is only a warning, because runs do not need it.
"""

from collections.abc import Sequence

import boto3.session
from botocore.config import Config as Network
from botocore.exceptions import ClientError

from configs.schema.config import Config
from infra.compute.batch.api import Api
from infra.compute.batch.api_errors import NOT_ACCEPTED
from infra.compute.batch.backoff import WaitPolicy
from infra.compute.batch.job import checked, definition_of
from infra.store.credentials import NO_CREDENTIALS, code_of
from tasks.contracts.stages import Stage
from tasks.foundation.errors import one_line
from tasks.upkeep.check import CheckResult

_HURRIED = Network(retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=4, read_timeout=4)
_BATCH_SECONDS = 8.0
_SIGN_IN = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives them"


def credentials() -> CheckResult:
    """Check which identity AWS sees."""
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
        BotoCoreError: there was no answer, or there are no credentials.
    """
    bucket = workspace.removeprefix("s3://").partition("/")[0]
    try:
        answer = boto3.session.Session().client("s3", config=_HURRIED).list_objects_v2(Bucket=bucket, MaxKeys=1)
    except ClientError as error:
        answer = error.response
    date: str | None = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return date


def batch(config: Config, stages: Sequence[Stage]) -> CheckResult:
    """Check the queues and job definitions of the stages. Raises ConfigError: names the first wrong one."""
    api = Api.connect(WaitPolicy(seconds=_BATCH_SECONDS))
    found = (checked(api, stage, config.batch, api.definition(definition_of(stage, config.batch))) for stage in stages)
    queues = sorted({queue.name for queue, _ in found})
    return CheckResult("ok", f"queues {' and '.join(queues)} and {len(stages)} job definitions in {api.region}")
