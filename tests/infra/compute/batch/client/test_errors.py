"""What AWS says, as one sentence for the person who can set it right."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    ProfileNotFound,
    ReadTimeoutError,
)

from infra.compute.batch.client.errors import config_error, never_accepted

URL = "https://batch.eu-north-1.amazonaws.com"


def reply(code: str, status: int, message: str = "said so", operation: str = "SubmitJob") -> ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (NoCredentialsError(), ["no usable AWS credentials", "eu-north-1", "AWS_PROFILE"]),
        (ProfileNotFound(profile="p"), ["no usable AWS credentials", "(p)"]),
        (NoRegionError(), ["no AWS region", "AWS_DEFAULT_REGION"]),
        (
            reply("UnrecognizedClientException", 403),
            ["does not accept the AWS credentials", "said so"],
        ),
        (reply("ExpiredTokenException", 403), ["does not accept the AWS credentials", "sign in again"]),
        (reply("AccessDeniedException", 403), ["denied batch:SubmitJob", "job queue 'q'", "eu-north-1", "allow it"]),
        (reply("AccessDeniedException", 403, operation="GetLogEvents"), ["denied logs:GetLogEvents"]),
        (reply("InvalidSignatureException", 403, "Signature expired: 1"), ["clock", "set it right"]),
        (reply("ClientException", 400, "JobQueue q not found."), ["refused batch:SubmitJob", "JobQueue q not found"]),
        (ParamValidationError(report="bad\nname"), ["job queue 'q'", "bad name"]),
    ],
)
def test_what_somebody_has_to_set_right_is_one_sentence_that_names_it(error, parts) -> None:
    told = config_error(error, "job queue 'q'", "eu-north-1")
    assert told is not None
    assert [part for part in parts if part not in str(told)] == []
    assert "\n" not in str(told)


@pytest.mark.parametrize(
    ("error", "surely_not"),
    [
        (reply("TooManyRequestsException", 429), True),
        (reply("ThrottlingException", 400), True),
        (EndpointConnectionError(endpoint_url=URL), True),
        (reply("ServerException", 500), False),
        (reply("503", 503), False),
        (ReadTimeoutError(endpoint_url=URL), False),
        (ConnectionClosedError(endpoint_url=URL), False),
        (CredentialRetrievalError(provider="iam-role", error_msg="busy"), False),
    ],
)
def test_what_time_may_heal_is_no_error_yet_and_only_some_of_it_surely_had_no_effect(error, surely_not) -> None:
    assert config_error(error, "job queue 'q'", "eu-north-1") is None
    assert never_accepted(error) == surely_not
