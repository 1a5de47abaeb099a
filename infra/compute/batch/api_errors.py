"""Convert errors of AWS Batch, CloudWatch Logs and botocore: a mistake of the user is a ConfigError.

Transient errors are not converted: `api.py` repeats the call.
"""

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoRegionError,
    ParamValidationError,
    ProxyConnectionError,
)

from infra.store.credentials import NO_CREDENTIALS, code_of
from tasks.foundation.errors import ConfigError, one_line

_DENIED = ("AccessDeniedException", "AccessDenied", "UnauthorizedOperation")
NOT_ACCEPTED = (
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "SubscriptionRequiredException",
    "UnrecognizedClientException",
)
_WRONG_CLOCK = ("RequestExpired", "RequestTimeTooSkewed")
_THROTTLED = (
    "RequestLimitExceeded",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
)
_NOT_SENT = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)


def was_never_accepted(error: Exception) -> bool:
    """Return True if the request certainly had no effect. After other errors (a 5xx, a lost reply) it may have."""
    if isinstance(error, ClientError):
        return code_of(error) in _THROTTLED or _status(error) == 429
    return isinstance(error, _NOT_SENT)


def config_error(error: BotoCoreError | ClientError | ValueError, about: str, region: str) -> ConfigError | None:
    """Return the error for a mistake of the user; None for a transient error.

    Args:
        about: the requested resource, such as "job queue 'millrace-cpu'".
    """
    if isinstance(error, ClientError):
        return _of_reply(error, about, region)
    if isinstance(error, NoRegionError):
        return ConfigError(
            "no AWS region is configured for AWS Batch; set AWS_DEFAULT_REGION to that of the job queues"
        )
    if isinstance(error, NO_CREDENTIALS):
        return ConfigError(
            f"no usable AWS credentials for AWS Batch in {region}: {one_line(error)}; set AWS_PROFILE, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives them"
        )
    if isinstance(error, ParamValidationError | ValueError):
        return ConfigError(f"{about} in {region} can't be requested: {one_line(error)}; correct the section `batch`")
    return None


def _of_reply(error: ClientError, about: str, region: str) -> ConfigError | None:
    code = code_of(error)
    said = f"{code}: {error.response.get('Error', {}).get('Message', '')}".rstrip(": .")
    service = "logs" if error.operation_name == "GetLogEvents" else "batch"
    if code in _DENIED:
        return ConfigError(
            f"AWS denied {service}:{error.operation_name} on {about} in {region} ({said}); "
            "allow it to these credentials, as the control role of infra/aws/millrace.yaml does"
        )
    if code in _WRONG_CLOCK or "ignature expired" in said or "ignature not yet current" in said:
        return ConfigError(f"AWS Batch in {region} refuses this machine's clock ({said}); set it right")
    if code in NOT_ACCEPTED:
        return ConfigError(
            f"AWS Batch in {region} does not accept the AWS credentials ({said}); sign in again or correct them"
        )
    if code in _THROTTLED or _status(error) in (408, 429) or _status(error) >= 500:
        return None
    return ConfigError(
        f"AWS refused {service}:{error.operation_name} on {about} in {region} ({said}); "
        "correct the section `batch` of the configuration, or the queue and job definition that it names"
    )


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
