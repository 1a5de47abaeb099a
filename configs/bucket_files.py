"""Configuration files in a bucket: `--config s3://bucket/key.yaml`."""

from functools import cache
from typing import Any

from tasks.foundation.errors import ConfigError, StoreError, one_line
from tasks.foundation.s3_path import S3Path

_MISSING = ("NoSuchKey", "404")
_DENIED = ("AccessDenied", "AllAccessDisabled", "403", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch")


@cache
def object_bytes(path: S3Path, most: int) -> bytes:
    """Return the first bytes of an object.

    One request in the life of a process, so that all of a run sees the same settings, even if somebody replaces them.

    Args:
        most: of bytes that are fetched.

    Raises:
        ConfigError: there is no such object, or it may not be read; names bucket, key and the way out.
        StoreError: the bucket gave no answer; it may later.
    """
    import boto3.session  # not for files of this machine
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError, ProfileNotFound

    if not path.bucket or not path.key:
        raise ConfigError(f"{str(path)!r}: name an object, as in s3://bucket/settings/team.yaml")
    try:
        client: Any = boto3.session.Session().client("s3")
        return client.get_object(Bucket=path.bucket, Key=path.key)["Body"].read(most)
    except ClientError as error:
        raise _refused(path, error.response.get("Error", {}).get("Code", ""), one_line(error)) from error
    except (NoCredentialsError, NoRegionError, ProfileNotFound) as error:
        raise ConfigError(
            f"{path}: {one_line(error)}; sign in to AWS, or run where a role gives credentials"
        ) from error
    except BotoCoreError as error:
        raise StoreError(f"{path}: bucket {path.bucket!r} gave no answer: {one_line(error)}") from error


def _refused(path: S3Path, code: str, said: str) -> ConfigError | StoreError:
    if code in _MISSING:
        return ConfigError(
            f"{path}: bucket {path.bucket!r} has no object {path.key!r}; put it there (aws s3 cp FILE {path}), or "
            "correct the name"
        )
    if code == "NoSuchBucket":
        return ConfigError(f"{path}: there is no bucket {path.bucket!r}; correct the name")
    if code in _DENIED:
        return ConfigError(
            f"{path}: access to object {path.key!r} of bucket {path.bucket!r} was denied ({code}); allow these "
            "credentials s3:GetObject on it, and s3:ListBucket, without which S3 denies what is missing"
        )
    return StoreError(f"{path}: bucket {path.bucket!r} answered {said}")
