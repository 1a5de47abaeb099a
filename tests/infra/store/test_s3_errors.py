"""The class and the way out of an error that a bucket or its client answers with."""

from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from infra.store import s3_store
from infra.store.aws import convert_errors
from infra.store.factory import open_store
from infra.store.s3_store import S3Store
from tasks.foundation.errors import ConfigError, StageError, StoreError
from tests.support.cloud.s3 import Fault, S3Server, bucket_of


@pytest.fixture
def store(bucket: S3Store) -> S3Store:
    return bucket


REFUSALS: dict[str, tuple[Fault, type[StageError], str]] = {
    "denied": (Fault("GET", 403, "AccessDenied"), ConfigError, "was denied .*s3:ListBucket"),
    "unknown key": (Fault("GET", 403, "InvalidAccessKeyId"), ConfigError, "does not accept the AWS credentials"),
    "expired": (Fault("GET", 400, "ExpiredToken"), ConfigError, "ExpiredToken.* sign in again"),
    "clock": (Fault("GET", 403, "RequestTimeTooSkewed"), ConfigError, "clock .* set it right"),
    "elsewhere": (
        Fault("GET", 400, "AuthorizationHeaderMalformed", more="<Region>eu-south-2</Region>"),
        ConfigError,
        "another region .* set AWS_DEFAULT_REGION to eu-south-2",
    ),
    "no such feature": (Fault("GET", 501, "NotImplemented"), ConfigError, "conditional writes"),
    "unknown": (Fault("GET", 400, "Strange"), StoreError, "answered Strange: as the test wants it"),
}


def test_who_may_list_a_folder_and_read_nothing_there_knows_what_exists(store: S3Store, s3: S3Server) -> None:
    store.write("a", b"bytes")
    for key, there in (("a", True), ("b", False)):
        s3.faults = [Fault("HEAD", 403, "AccessDenied"), Fault("GET", 403, "AccessDenied", about=f"/{key}?")]
        assert store.exists(key) is there


@pytest.mark.parametrize(("fault", "error", "message"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize(
    "ask",
    [lambda store: store.read("a"), lambda store: store.exists("a"), lambda store: store.list("a")],
    ids=["read", "exists", "list"],
)
def test_a_refusal_names_the_bucket_and_the_way_out(
    store: S3Store, s3: S3Server, fault: Fault, error: type[StageError], message: str, ask
) -> None:
    s3.faults = [fault] * 2  # botocore asks again for some, in another region
    with pytest.raises(error, match=f"bucket '{bucket_of(store.uri)}' .*{message}"):
        ask(store)


WRITES = {
    "write": lambda store, source: store.write("a", b""),
    "create": lambda store, source: store.create("a", b""),
    "swap": lambda store, source: store.swap("a", b"", None),
    "upload": lambda store, source: store.upload(source, "a"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_denied_write_is_a_config_error(store: S3Store, s3: S3Server, source: Path, write) -> None:
    s3.faults = [Fault("PUT", 403, "AccessDenied")]
    with pytest.raises(ConfigError, match=f"{store.uri}/a: access to bucket"):
        write(store, source)


USES = WRITES | {
    "read": lambda store, source: store.read("a"),
    "list": lambda store, source: store.list("a"),
    "exists": lambda store, source: store.exists("a"),
    "local": lambda store, source: store.local("a"),
    "move": lambda store, source: store.move("a", "b"),
    "delete": lambda store, source: store.delete("a"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_missing_bucket_is_a_config_error(s3: S3Server, source: Path, use) -> None:
    with pytest.raises(ConfigError, match="bucket 'nowhere'"):
        use(S3Store("s3://nowhere/a"), source)


def test_throttling_is_waited_out(store: S3Store, s3: S3Server) -> None:
    s3.faults = [Fault("PUT", 503, "SlowDown")] * (s3_store.ATTEMPTS - 1)
    store.write("a", b"one")
    assert store.read("a") == b"one"


@pytest.mark.parametrize("status", [500, 503])
def test_a_bucket_that_keeps_failing_is_a_store_error(store: S3Store, s3: S3Server, status: int) -> None:
    s3.faults = [Fault("PUT", status, "SlowDown")] * (s3_store.ATTEMPTS + 1)
    with pytest.raises(StoreError, match=r"SlowDown: .*5 tries"):
        store.write("a", b"one")
    assert len(s3.faults) == 1


@pytest.mark.parametrize("use", [USES[name] for name in ("write", "read", "upload")])
def test_an_unreachable_server_is_a_store_error(
    store: S3Store, source: Path, monkeypatch: pytest.MonkeyPatch, use
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9"):
        use(S3Store(store.uri), source)


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No AWS account can be found."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))


def test_missing_credentials_are_a_config_error(s3: S3Server, no_account: None) -> None:
    with pytest.raises(ConfigError, match=r"'bucket-a'.* AWS_PROFILE"):
        S3Store("s3://bucket-a/b").list("")


def test_a_role_whose_new_credentials_are_expired_too_may_get_others(
    s3: S3Server, no_account: None, tmp_path: Path
) -> None:
    """As an overloaded endpoint of a machine gives them, or a machine whose clock is hours ahead sees them."""
    given = '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "2026-01-01T00:00:00Z"}'
    (tmp_path / "given.json").write_text(given)
    (tmp_path / "absent").write_text(f"[default]\ncredential_process = cat {tmp_path}/given.json\n")
    with pytest.raises(StoreError, match=r"bucket 'bucket-a' .*still expired.* clock"):
        S3Store("s3://bucket-a/b").list("")


@pytest.mark.parametrize(
    ("code", "status", "error", "message"),
    [
        ("AccessDenied", 403, ConfigError, r"no usable AWS credentials .*\(AssumeRole\).*not authorized"),
        ("IDPCommunicationError", 400, StoreError, r"could not be used: .*\(AssumeRole\).*IDPCommunicationError"),
        ("ServiceUnavailable", 503, StoreError, r"could not be used: .*\(AssumeRole\).*ServiceUnavailable"),
    ],
)
def test_a_refused_role_is_not_taken_for_a_refusal_of_the_bucket(
    code: str, status: int, error: type[StageError], message: str
) -> None:
    refused = {"Error": {"Code": code, "Message": "not authorized"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    with pytest.raises(error, match=message), convert_errors("b", "s3://b/a"):
        raise ClientError(refused, "AssumeRole")  # pyright: ignore[reportArgumentType]


def test_an_unknown_profile_is_a_config_error(no_account: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(ConfigError, match=r"bucket-a/b.*AWS_PROFILE"):
        open_store("s3://bucket-a/b")


@pytest.mark.parametrize(("name", "value"), [("AWS_ENDPOINT_URL", "nonsense"), ("AWS_DEFAULT_REGION", "no such place")])
def test_nonsense_in_the_environment_is_a_config_error(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=rf"{value}.*{name}"):
        open_store("s3://bucket-a/b")


def test_an_impossible_bucket_name_is_a_config_error(s3: S3Server) -> None:
    with pytest.raises(ConfigError, match=r"bucket 'no bucket!'"):
        S3Store("s3://no bucket!/a").list("")
