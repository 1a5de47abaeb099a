"""boto3 clients with botocore's credentials, and errors of S3 and botocore as the project's error classes.

A mistake of the user is a ConfigError that names the bucket; a transient error is a NoAnswer, after botocore's own
retries.
"""

import contextlib
import datetime as dt
import functools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import boto3.session
import botocore.loaders
import botocore.session
from botocore.config import Config
from botocore.credentials import ContainerProvider
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.utils import parse_timestamp
from s3transfer.exceptions import RetriesExceededError

from infra.store.base import NoAnswer
from tasks.foundation.clock import sleep
from tasks.foundation.errors import ConfigError, StageError, one_line

NO_CREDENTIALS = (
    ConfigNotFound,
    ConfigParseError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)


_WAIT_SECONDS = (2.0, 4.0, 8.0)


class EndpointBusy(Exception):
    """The endpoint for containers' credentials gave none."""


def patient_client(service: str, config: Config) -> Any:
    """Return a boto3 client; wait for its credentials.

    All containers of an instance share one endpoint for their roles' credentials, which ECS limits to 40 requests a
    second. When the workers of a large machine start together, botocore's three tries, a second apart, may not suffice.

    Raises:
        EndpointBusy: the endpoint still refused after 14 seconds.
        BotoCoreError, ValueError: AWS's own configuration is broken.
    """
    waits = iter(_WAIT_SECONDS)
    while True:
        try:
            return _session().client(service, config=config)
        except CredentialRetrievalError as error:
            if error.kwargs["provider"] != ContainerProvider.METHOD:
                raise
            seconds = next(waits, None)
            if seconds is None:
                raise EndpointBusy(str(error)) from error
            time.sleep(seconds * random.uniform(0.5, 1.0))  # jitter, as all workers start together


def _session() -> boto3.session.Session:
    found = botocore.session.get_session()
    found.register_component("data_loader", _descriptions())
    found.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment)
    return boto3.session.Session(botocore_session=found)


@functools.cache
def _descriptions() -> botocore.loaders.Loader:
    """Return botocore's descriptions of services, which a process reads once: they take most of a client's time."""
    return botocore.loaders.create_loader()


def moment(text: Any) -> dt.datetime:
    """Parse a time as S3 lists it, `2026-11-25T08:00:00.000Z`; leave other formats to botocore.

    Botocore's own parser takes half of the time of a long listing.
    """
    try:
        return dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return parse_timestamp(text)


def code_of(error: Exception) -> str:
    """Return AWS's error code, or the HTTP status of a reply without a body; empty without a reply."""
    return error.response.get("Error", {}).get("Code", "") if isinstance(error, ClientError) else ""


_STILL_EXPIRED = "refreshed credentials are still expired"  # in botocore's error, a bare RuntimeError
_OF_ROLES = ("AssumeRole", "AssumeRoleWithSAML", "AssumeRoleWithWebIdentity", "GetRoleCredentials")
_LATER = ("IDPCommunicationError", "Throttling", "ThrottlingException", "TooManyRequestsException")


@contextlib.contextmanager
def role_errors() -> Iterator[None]:
    """Convert the errors of botocore's own requests for a role's credentials, which it makes inside any other request.

    Raises:
        CredentialRetrievalError: the next request may get them.
        TokenRetrievalError: a person must correct the role, its trust or the profile that names it.
    """
    try:
        yield
    except RuntimeError as error:
        if _STILL_EXPIRED not in str(error):
            raise
        said = f"{error} If this lasts, the clock of this machine is ahead, or what gives its credentials is broken"
        raise CredentialRetrievalError(provider="the role of this machine", error_msg=said) from error
    except ClientError as error:
        if error.operation_name not in _OF_ROLES:
            raise
        passes = code_of(error) in _LATER or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500
        kind = CredentialRetrievalError if passes else TokenRetrievalError
        raise kind(provider=f"AWS for a role ({error.operation_name})", error_msg=one_line(error)) from error


T = TypeVar("T")

MISSING = ("NoSuchKey", "404")
LOST = ("PreconditionFailed", "412", *MISSING)  # error codes of a failed conditional write
BUSY = ("InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown")  # codes of one key in an answer about many
PAUSES_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6)  # between tries of a write that collided with another one, or of such a key

_SIMULTANEOUS = ("ConditionalRequestConflict", "409")  # undecided: S3 asks for the same request again

_DENIED = ("AccessDenied", "AllAccessDisabled", "403")
_NOT_ACCEPTED = ("ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired")
_ELSEWHERE = ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "301")
_UNKNOWN = ("NotImplemented", "501")


@contextlib.contextmanager
def convert_errors(bucket: str, where: str) -> Iterator[None]:
    """Convert the errors of AWS's libraries in the block to ConfigError or NoAnswer about `where` in `bucket`."""
    try:
        with role_errors():
            yield
    except ClientError as error:
        raise _of_reply(error, bucket, where) from error
    except NO_CREDENTIALS as error:
        raise ConfigError(
            f"{where}: no usable AWS credentials for bucket {bucket!r}: {error}; set AWS_PROFILE, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives them"
        ) from error
    except ParamValidationError as error:
        raise ConfigError(
            f"{where}: bucket {bucket!r} cannot be requested: {one_line(error)}; correct the workspace's name"
        ) from error
    except (BotoCoreError, RetriesExceededError) as error:
        raise NoAnswer(f"{where}: bucket {bucket!r} could not be used: {one_line(error)}") from error


def retry_conflicts(write: Callable[[], T]) -> T:
    """Do a conditional write; retry while S3 answers that another write of the same object is under way."""
    for pause in PAUSES_SECONDS:
        try:
            return write()
        except ClientError as error:
            if code_of(error) not in _SIMULTANEOUS:
                raise
        sleep(pause * random.uniform(0.5, 1.5))
    return write()


def _of_reply(error: ClientError, bucket: str, where: str) -> StageError:
    code, reply = code_of(error), error.response
    said = f"{code}: {reply.get('Error', {}).get('Message', '')}".rstrip(": .")
    if code == "NoSuchBucket":
        return ConfigError(f"{where}: there is no bucket {bucket!r}; create it, or name another workspace")
    if code in _DENIED:
        return ConfigError(
            f"{where}: access to bucket {bucket!r} was denied ({said}); allow these credentials s3:ListBucket on the "
            "bucket, and s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on its objects"
        )
    if code in _NOT_ACCEPTED:
        return ConfigError(
            f"{where}: bucket {bucket!r} does not accept the AWS credentials ({said}); sign in again or correct them"
        )
    if code in _ELSEWHERE:
        region = _region(reply)
        return ConfigError(
            f"{where}: bucket {bucket!r} is in another region ({said}); "
            f"set AWS_DEFAULT_REGION to {region or 'the one it was made in'}"
        )
    if code == "RequestTimeTooSkewed":
        return ConfigError(f"{where}: bucket {bucket!r} refuses this machine's clock ({said}); set it right")
    if code in _UNKNOWN:
        return ConfigError(
            f"{where}: the server of bucket {bucket!r} cannot do what a workspace needs ({said}); "
            "use one with conditional writes and multipart uploads"
        )
    tries = reply.get("ResponseMetadata", {}).get("RetryAttempts", 0) + 1
    return NoAnswer(f"{where}: bucket {bucket!r} answered {said}, at the last of {tries} tries")


def _region(reply: Any) -> str:
    named = reply.get("Error", {}).get("Region", "")
    return named or reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
