"""AWS, where something of it is used: whose credentials are found, whether bucket and Batch are as they must be.

What an honest orchestrator may be denied (who am I) is a warning; what every run needs is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import boto3.session
from botocore.config import Config as Network
from botocore.exceptions import ClientError

from configs.schema import Config
from infra.batch.api import Api
from infra.batch.checking import checked
from infra.batch.errors import NOT_ACCEPTED, code_of
from infra.batch.job import definition_of
from infra.batch.patience import Patience
from infra.checkup.finding import Seen
from infra.credentials import NO_CREDENTIALS
from tasks.contracts import Stage

_HURRIED = Network(retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=4, read_timeout=4)
_BATCH_SECONDS = 8.0
_SIGN_IN = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives them"


def credentials() -> Seen:
    """Who AWS takes this process for."""
    try:
        session = boto3.session.Session()
        region = session.region_name or "us-east-1"  # any will do
        me = session.client("sts", region_name=region, config=_HURRIED).get_caller_identity()
    except NO_CREDENTIALS as error:
        return Seen("FAIL", f"none that can be used: {_one_line(error)}", _SIGN_IN)
    except Exception as error:  # denied, or no way to STS; and what botocore makes of an answer that only S3 gives
        if code_of(error) in NOT_ACCEPTED:
            return Seen("FAIL", f"AWS does not accept them: {_one_line(error)}", "sign in again or correct them")
        told = f"whose they are can't be asked: {type(error).__name__}: {_one_line(error)}"
        return Seen("warn", told, "no matter if all else here is ok")
    return Seen("ok", f"{me['Arn']} of account {me['Account']}")


def date_of_bucket(workspace: str) -> str | None:
    """The Date header of S3's answer, whatever it answers.

    Raises:
        BotoCoreError: there was no answer, or no credentials to ask with.
    """
    bucket = workspace.removeprefix("s3://").partition("/")[0]
    try:
        answer = boto3.session.Session().client("s3", config=_HURRIED).list_objects_v2(Bucket=bucket, MaxKeys=1)
    except ClientError as error:
        answer = error.response
    date: str | None = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return date


def batch(config: Config, stages: Sequence[Stage]) -> Seen:
    """Queues and job definitions of the stages. Raises ConfigError: names the first that is not as it must be."""
    api = Api.connect(Patience(lambda: None, lambda line: None, _BATCH_SECONDS))
    found = (checked(api, stage, config.batch, api.definition(definition_of(stage, config.batch))) for stage in stages)
    queues = sorted({queue.name for queue, _ in found})
    return Seen("ok", f"queues {' and '.join(queues)} and {len(stages)} job definitions in {api.region}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
