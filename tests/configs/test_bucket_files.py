"""Settings from a bucket: `--config s3://bucket/key.yaml`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from configs.in_force import in_force
from configs.load import config_hash, load_config
from configs.prices import price_of
from infra.prefect_server import Server
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.s3_path import S3Path
from tests.support.cloud.s3 import Fault, S3Server
from tests.support.fakes.commands import run_pipeline
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.command import call

PRICES = """\
- {basis: on_demand, region: us-east-1, date: 2026-11-20, source: a page, dollars_per_hour: {trn1.32xlarge: 9.5}}
"""
OWN = "extends: demo.yaml\ntrain:\n  epochs: 7\n"


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """A new bucket, so that no test meets what another has read."""
    return s3.new_workspace().removeprefix("s3://").partition("/")[0]


def put(s3: S3Server, bucket: str, key: str, text: str) -> S3Path:
    s3.client.put_object(Bucket=bucket, Key=key, Body=text.encode())
    return S3Path(f"s3://{bucket}/{key}")


def reads(s3: S3Server) -> int:
    return sum("team.yaml" in one for one in s3.requests)


def test_a_file_in_a_bucket_makes_the_run_of_the_same_file_here(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """The hash of a run's key is over the resolved settings, not over their address."""
    there = put(s3, bucket, "settings/team.yaml", OWN)
    (tmp_path / "team.yaml").write_text(OWN.replace("demo.yaml", str(Path("configs/demo.yaml").resolve())))
    assert config_hash(load_config(there)) == config_hash(load_config(tmp_path / "team.yaml"))
    assert config_hash(load_config(str(there))) != config_hash(load_config())
    assert in_force(there).of("train.epochs") == (7, f"{there}:3")


def test_it_is_read_once_so_that_a_run_has_one_set_of_settings(s3: S3Server, bucket: str) -> None:
    there = put(s3, bucket, "settings/team.yaml", OWN)
    first = load_config(there)
    put(s3, bucket, "settings/team.yaml", OWN.replace("7", "8"))
    s3.forget()
    assert config_hash(load_config(there)) == config_hash(first)
    assert reads(s3) == 0


def test_lists_of_expectations_and_of_prices_may_lie_in_a_bucket(s3: S3Server, bucket: str) -> None:
    """A deployed run has no files of the team beside the code."""
    suite = put(s3, bucket, "settings/suite.yaml", "- {expectation: expect_column_to_exist, column: label}\n")
    prices = put(s3, bucket, "settings/prices.yaml", PRICES)
    config = load_config(None, [f"validate.suites=[{suite}]", f"cost.prices={prices}"])
    assert [each.expectation for each in config.validate_.expectations] == ["expect_column_to_exist"]
    price = price_of("trn1.32xlarge", config.cost)
    assert price is not None
    assert price.dollars_per_hour == 9.5
    with pytest.raises(ConfigError, match=r"'settings/gone\.yaml'"):
        load_config(None, [f"validate.suites=[s3://{bucket}/settings/gone.yaml]"])


def test_it_extends_a_file_beside_it_that_the_code_has_not(s3: S3Server, bucket: str) -> None:
    put(s3, bucket, "settings/company.yaml", "lineage: of-all\n")
    there = put(s3, bucket, "settings/team.yaml", OWN.replace("demo.yaml", "company.yaml"))
    assert (load_config(there).lineage, load_config(there).train.epochs) == ("of-all", 7)
    circle = put(s3, bucket, "settings/circle.yaml", "extends: circle.yaml\n")
    with pytest.raises(ConfigError, match="leads back"):
        load_config(circle)


@pytest.mark.parametrize(
    ("key", "fault", "error", "said"),
    [
        (
            "settings/none.yaml",
            None,
            ConfigError,
            r"bucket 'bucket-\d+' has no object 'settings/none.yaml'; .*aws s3 cp",
        ),
        ("settings/team.yaml", Fault("GET", 403, "AccessDenied"), ConfigError, "denied.*s3:GetObject"),
        ("settings/team.yaml", Fault("GET", 404, "NoSuchBucket"), ConfigError, r"no bucket 'bucket-\d+'"),
        ("settings/team.yaml", Fault("GET", 400, "Odd"), StoreError, "answered .*Odd"),
        ("", None, ConfigError, "name an object"),
        ("settings/bad.yaml", None, ConfigError, "not readable as YAML: line 1"),
        ("settings/bytes.yaml", None, ConfigError, "not readable as YAML"),
    ],
)
def test_a_file_that_is_missing_or_denied_is_named_with_the_way_out(
    s3: S3Server, bucket: str, key: str, fault: Fault | None, error: type[Exception], said: str
) -> None:
    put(s3, bucket, "settings/team.yaml", OWN)
    put(s3, bucket, "settings/bad.yaml", "a: [")
    s3.client.put_object(Bucket=bucket, Key="settings/bytes.yaml", Body=b"\xff\xfe")
    s3.faults = [fault] if fault else []
    with pytest.raises(error, match=said):
        load_config(f"s3://{bucket}/{key}")


def test_a_run_fetches_it_once_and_keeps_it_resolved(s3: S3Server, bucket: str, server: Server, tmp_path: Path) -> None:
    ingest(DirectoryStore(tmp_path), "2026-01")
    there = put(s3, bucket, "settings/team.yaml", "train:\n  epochs: 7\n")
    assert run_pipeline(server, tmp_path, "--config", str(there)).code == 0
    assert reads(s3) == 2, "put once, got once"
    (kept,) = tmp_path.glob("runs/*/config.yaml")
    assert yaml.safe_load(kept.read_text())["train"]["epochs"] == 7


def test_the_commands_take_it(s3: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    there = put(s3, bucket, "settings/team.yaml", OWN)
    done = call(capsys, "config", "train.epochs", "--config", str(there), "--json")
    assert done.json["config_file"] == str(there)
    assert [one["origin"] for one in done.json["settings"]] == [f"{there}:3"]
