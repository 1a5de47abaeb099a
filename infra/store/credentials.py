"""boto3 clients with botocore's credentials, the errors if it finds none, and the error code of a reply."""

import datetime as dt
import random
import time
from typing import Any

import boto3.session
import botocore.session
from botocore.config import Config
from botocore.credentials import ContainerProvider
from botocore.exceptions import (
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.utils import parse_timestamp

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
    found.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment)
    return boto3.session.Session(botocore_session=found)


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
