"""Passwords and API keys of targets: from the environment, or from Secrets Manager, which the environment names.

A job on AWS Batch gets names alone, so no definition of a job and no log of its start shows a secret.
"""

import json
import os
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.store.aws import NO_CREDENTIALS, EndpointBusy, code_of, patient_client
from infra.store.base import NoAnswer
from tasks.foundation.errors import ConfigError, one_line

NAMED = "MILLRACE_SECRETS"  # `VARIABLE=SECRET` or `VARIABLE=SECRET:KEY`, with commas between them
_ARN_PARTS = 7  # arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME
_REFUSED = (
    *("ResourceNotFoundException", "AccessDeniedException", "AccessDenied", "DecryptionFailure"),
    *("InvalidRequestException", "InvalidParameterException", "ValidationException"),
)


def secret_of(variable: str | None, where: str) -> str | None:
    """Return the secret that belongs to an environment variable; None without a variable.

    Args:
        variable: `password_env` or `api_key_env` of a target.
        where: the target, in words, for errors.

    Raises:
        ConfigError: neither the variable is set, nor MILLRACE_SECRETS names a secret for it that can be read.
        NoAnswer: Secrets Manager gave no answer; it may later.
    """
    if variable is None or variable in os.environ:
        return os.environ[variable] if variable is not None else None
    named = dict(each.split("=", 1) for each in os.environ.get(NAMED, "").split(",") if "=" in each)
    if variable not in named:
        raise ConfigError(
            f"{where}: the environment variable {variable} is not set where it is published from; on AWS Batch, name "
            f"its secret in the stack's parameter PublishSecrets: {variable}=NAME/..."
        )
    return _read(named[variable], f"{where}: secret {named[variable]} of {variable}")


def _read(name: str, where: str) -> str:
    parts = name.split(":")
    own = _ARN_PARTS if name.startswith("arn:") else 1
    secret, key = ":".join(parts[:own]), ":".join(parts[own:])
    try:
        text: Any = patient_client("secretsmanager", Config()).get_secret_value(SecretId=secret).get("SecretString")
    except ClientError as error:
        if code_of(error) in _REFUSED:
            raise ConfigError(
                f"{where}: {one_line(error)}; make it under that name, which begins with the stack's, or correct "
                "PublishSecrets"
            ) from error
        raise NoAnswer(f"{where}: {one_line(error)}") from error
    except NO_CREDENTIALS as error:
        raise ConfigError(f"{where}: no usable AWS credentials: {one_line(error)}") from error
    except (BotoCoreError, EndpointBusy) as error:
        raise NoAnswer(f"{where}: {one_line(error)}") from error
    if key and text is not None:
        try:
            text = json.loads(text)[key]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{where}: its value is no JSON object with the key {key!r}; correct either") from None
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{where}: its value is no text; store the password as text (SecretString)")
    return text
