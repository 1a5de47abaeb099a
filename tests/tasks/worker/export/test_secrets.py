"""Secrets of targets that a job on AWS Batch gets by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from infra.store.base import NoAnswer
from tasks.foundation.errors import ConfigError
from tasks.worker.export.secrets import secret_of


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Secrets Manager with one plain secret and one of RDS's form."""
    for name in ("AWS_ENDPOINT_URL", "MILLRACE_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("secretsmanager")
        client.create_secret(Name="millrace/find", SecretString="key=1:2")
        yield client.create_secret(
            Name="millrace/shop", SecretString=json.dumps({"username": "writer", "password": "geheim"})
        )["ARN"]


@pytest.mark.usefixtures("made")
def test_each_target_gets_its_own_secret(monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    monkeypatch.setenv("MILLRACE_SECRETS", f"FIND=millrace/find,SHOP=millrace/shop:password,BY_ARN={made}:password")
    assert [secret_of(name, "t") for name in ("FIND", "SHOP", "BY_ARN")] == ["key=1:2", "geheim", "geheim"]


def test_a_variable_that_is_set_counts_and_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SECRETS", "SHOP=millrace/shop")
    monkeypatch.setenv("SHOP", "mine")
    assert (secret_of("SHOP", "t"), secret_of(None, "t")) == ("mine", None)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("", "SHOP is not set .* PublishSecrets"),
        ("OTHER=millrace/shop", "SHOP is not set"),
        ("SHOP=millrace/none", "secret millrace/none of SHOP: .*ResourceNotFoundException"),
        ("SHOP=millrace/shop:pasword", "no JSON object with the key 'pasword'"),
        ("SHOP=millrace/find:password", "no JSON object with the key 'password'"),
    ],
)
@pytest.mark.usefixtures("made")
def test_a_secret_that_is_missing_is_named_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, named: str, said: str
) -> None:
    monkeypatch.setenv("MILLRACE_SECRETS", named)
    with pytest.raises(ConfigError, match=said) as error:
        secret_of("SHOP", "pgvector shop")
    assert "geheim" not in str(error.value)
    assert "key=1:2" not in str(error.value)


def test_no_answer_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SECRETS", "SHOP=millrace/shop")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(NoAnswer, match="millrace/shop of SHOP"):
        secret_of("SHOP", "t")
