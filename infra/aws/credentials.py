"""What botocore raises where it finds no usable credentials, for any service."""

from __future__ import annotations

from botocore.exceptions import (
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
