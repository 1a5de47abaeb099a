"""Errors of AWS as one sentence for the person who can fix them."""

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

from infra.compute.batch.api import config_error, was_never_accepted

URL = "https://batch.eu-north-1.amazonaws.com"


def reply(code: str, status: int, message: str = "the reason", operation: str = "SubmitJob") -> ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (NoCredentialsError(), ["no usable AWS credentials", "eu-north-1", "AWS_PROFILE"]),
        (ProfileNotFound(profile="p"), ["no usable AWS credentials", "(p)"]),
        (NoRegionError(), ["no AWS region", "AWS_DEFAULT_REGION"]),
        (reply("UnrecognizedClientException", 403), ["does not accept the AWS credentials", "the reason"]),
        (reply("ExpiredTokenException", 403), ["does not accept the AWS credentials", "sign in again"]),
        (reply("AccessDeniedException", 403), ["denied batch:SubmitJob", "job queue 'q'", "eu-north-1", "allow it"]),
        (reply("AccessDeniedException", 403, operation="GetLogEvents"), ["denied logs:GetLogEvents"]),
        (reply("InvalidSignatureException", 403, "Signature expired: 1"), ["clock", "set it right"]),
        (reply("ClientException", 400, "JobQueue q not found."), ["refused batch:SubmitJob", "JobQueue q not found"]),
        (ParamValidationError(report="bad\nname"), ["job queue 'q'", "bad name"]),
    ],
)
def test_an_error_that_a_person_must_fix_is_one_sentence_with_the_way_out(error, parts) -> None:
    found = config_error(error, "job queue 'q'", "eu-north-1")
    assert found is not None
    assert [part for part in parts if part not in str(found)] == []
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("error", "never"),
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
def test_a_passing_error_is_retried_and_only_some_surely_had_no_effect(error, never) -> None:
    assert config_error(error, "job queue 'q'", "eu-north-1") is None
    assert was_never_accepted(error) == never
