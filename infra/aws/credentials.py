"""Errors of botocore, for any service: the code in a reply, and those where it finds no usable credentials."""

from botocore.exceptions import (
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)

NO_CREDENTIALS = (
    ConfigNotFound,
    ConfigParseError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)


def code_of(error: Exception) -> str:
    """Return AWS's name for the error, the HTTP status of a reply without a body; empty where there was no reply."""
    return error.response.get("Error", {}).get("Code", "") if isinstance(error, ClientError) else ""
