"""Each check on something that is really broken. The Prefect server: tests/flows/cli/test_doctor.py."""

import email.utils
import http.server
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.config import Config as Network

import infra.store.s3_store
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.contracts.stages import Stage
from tasks.doctor import checks
from tasks.doctor.checks import Check, CheckResult, Finding, run_checks
from tasks.doctor.examine import DoctorReport, clock, date_of_server, examine
from tasks.foundation.errors import ConfigError
from tasks.runs import host_records
from tests.support.cloud.batch import STAGES, BatchServer
from tests.support.cloud.s3 import Fault, S3Server
from tests.support.fakes.fake_runner import ingest, small_config


@pytest.fixture(autouse=True)
def no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2026-01", "2026-02")
    return store


def finding(report: DoctorReport, name: str) -> Finding:
    return next(one for one in report.findings if one.name == name)


def assert_failed(one: Finding | CheckResult, text: str) -> None:
    assert one.outcome == "FAIL"
    assert text in one.found


def test_an_error_inside_a_check_is_a_finding() -> None:
    def refused() -> CheckResult:
        raise ConfigError("no such bucket;\n create it")

    def broken() -> CheckResult:
        raise ZeroDivisionError("division by zero")

    findings = run_checks([Check("a", refused), Check("b", broken), Check("c", lambda: CheckResult("ok", "fine"))])
    assert [(one.name, one.outcome) for one in findings] == [("a", "FAIL"), ("b", "FAIL"), ("c", "ok")]


def test_a_check_that_hangs_does_not_delay_the_others() -> None:
    forever = threading.Event()

    def hangs() -> CheckResult:
        forever.wait()
        return CheckResult("ok", "")

    slow, quick = run_checks([Check("mount", hangs), Check("other", lambda: CheckResult("ok", "fine"))], seconds=0.1)
    forever.set()
    assert (slow.outcome, quick.outcome) == ("FAIL", "ok")
    assert "no answer" in slow.found


def test_an_unsupported_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.python().outcome == "ok"
    monkeypatch.setattr("platform.python_version", lambda: "3.14.1")
    assert checks.python().outcome == "FAIL"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Add a package to the installed ones."""
    monkeypatch.syspath_prepend(tmp_path / "site")

    def install(name: str, version: str) -> None:
        folder = tmp_path / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return install


@pytest.mark.parametrize(
    ("name", "version", "outcome"),
    [("pretend", "2.9.1+cpu", "ok"), ("pretend", "2.9.2", "warn"), ("fastapi", "0.160.0", "FAIL")],
)
def test_a_version_that_differs_from_its_pin_is_reported(
    tmp_path: Path, installed: Callable[[str, str], None], name: str, version: str, outcome: str
) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(
        f"# chosen\nabsent==1.0  # is not installed here\n{name}==2.9.1  # the one that works\n\n# All\npytest==0.1\n"
    )
    installed(name, version)
    seen = checks.pins(constraints)
    assert seen.outcome == outcome
    if outcome != "ok":
        assert f"{name} is {version}, " in seen.found
        assert seen.mend.startswith(f"pip install {name}==2.9.1 ")


def test_only_pins_with_a_reason_are_compared() -> None:
    chosen = checks.chosen_pins(checks.CONSTRAINTS.read_text())
    assert {"prefect", "fastapi", "SQLAlchemy"} <= {pin.name for pin in chosen}
    assert "boto3" not in {pin.name for pin in chosen}
    assert checks.pins().outcome == "ok"


def test_an_installation_without_constraints_says_so(tmp_path: Path) -> None:
    seen = checks.pins(tmp_path / "constraints.txt")
    assert (seen.outcome, "constraints.txt" in seen.found) == ("warn", True)


@pytest.mark.parametrize(("share_of_free", "outcome"), [(0.01, "ok"), (0.5, "warn"), (1.5, "FAIL")])
def test_little_disk_space_warns_before_it_fails(tmp_path: Path, share_of_free: float, outcome: str) -> None:
    stat = os.statvfs(tmp_path)
    free = stat.f_bavail * stat.f_frsize / checks.GIB
    assert checks.disk(tmp_path / "not" / "there", free * share_of_free).outcome == outcome


@pytest.fixture
def dated() -> Iterator[Callable[[float], str]]:
    """Start a server whose clock is some seconds ahead; returns its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(ahead: float) -> str:
        class Late(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def date_time_string(self, timestamp: float | None = None) -> str:
                return email.utils.formatdate(time.time() + ahead, usegmt=True)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Late))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/api"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("ahead", "outcome", "found"),
    [
        (0.0, "ok", "agrees with the server"),
        (20.0, "warn", "s behind the server"),
        (-20.0, "warn", "s ahead of the server"),
        (300.0, "FAIL", "s behind the server"),
        (-300.0, "FAIL", "s ahead of the server"),
    ],
)
def test_a_wrong_clock_warns_before_it_fails(
    dated: Callable[[float], str], ahead: float, outcome: str, found: str
) -> None:
    url = dated(ahead)
    seen = clock("the server", lambda: date_of_server(url))
    assert (seen.outcome, found in seen.found) == (outcome, True), seen


def test_checks_leave_the_workspace_unchanged(store: DirectoryStore) -> None:
    before = sorted(path for path in store.root.rglob("*") if ".locks" not in path.parts)
    report = examine(store.uri, None, ())
    assert finding(report, "workspace").found.startswith(f"{store.uri}: 2 spans, ")
    assert finding(report, "store").outcome == "ok"
    assert sorted(path for path in store.root.rglob("*") if ".locks" not in path.parts) == before
    assert store.list(".locks") == []
    assert report.failed == 0


def test_a_missing_workspace_is_not_created(tmp_path: Path) -> None:
    report = examine(str(tmp_path / "typo"), None, ())
    assert finding(report, "workspace").outcome == "FAIL"
    assert not (tmp_path / "typo").exists()
    assert [one.name for one in report.findings if one.name in ("store", "hosts")] == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that refuses even root is only known on Linux")
def test_a_folder_that_cannot_be_written_fails() -> None:
    report = examine("/proc/self", None, ())
    assert finding(report, "store").outcome == "FAIL"
    assert finding(report, "python").outcome == "ok"


class NoConditions(DirectoryStore):
    """A store that ignores the condition of a write."""

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        self.write(key, data)


def test_a_store_that_swaps_blindly_is_refused(store: DirectoryStore) -> None:
    assert_failed(checks.guarantees(NoConditions(store.root)), "was swapped although it had changed")
    assert store.list("doctor") == []


def test_a_damaged_pointer_fails(store: DirectoryStore) -> None:
    store.write("releases/CURRENT", b"{")
    assert_failed(finding(examine(store.uri, None, ()), "workspace"), "releases/CURRENT")


def test_excluded_hosts_are_named(store: DirectoryStore) -> None:
    assert checks.excluded(store).outcome == "ok"
    host_records.exclude(store, "i-7", "ECC errors", "cafe", small_config().health, time.time())
    seen = checks.excluded(store)
    assert (seen.outcome, seen.found) == ("warn", "excluded: i-7")


def test_a_wrong_setting_is_one_failed_check(store: DirectoryStore) -> None:
    report = examine(store.uri, None, ["train.lerning_rate=1"])
    assert_failed(finding(report, "configuration"), "did you mean 'train.learning_rate'?")
    assert (report.failed, finding(report, "store").outcome) == (1, "ok")


def test_a_workspace_in_a_bucket_passes(s3: S3Server) -> None:
    uri = s3.new_workspace()
    ingest(open_store(uri), "2026-01")
    report = examine(uri, None, ())
    assert {finding(report, name).outcome for name in ("workspace", "store", "clock")} == {"ok"}
    assert [key for key in open_store(uri).list("") if not key.startswith("spans/")] == []
    assert finding(report, "credentials").outcome == "warn"  # that server knows of no STS


def test_a_missing_or_denied_bucket_fails(s3: S3Server) -> None:
    assert_failed(finding(examine("s3://missing-bucket/x", None, ()), "store"), "there is no bucket 'missing-bucket'")
    uri = s3.new_workspace()
    s3.faults += [Fault("PUT", 403, "AccessDenied")] * 20
    assert_failed(finding(examine(uri, None, ()), "store"), "s3:PutObject")


def test_an_endpoint_that_does_not_answer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Network(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=1)
    monkeypatch.setattr(infra.store.s3_store, "_NETWORK", once)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    report = examine("s3://bucket/x", None, ())
    assert "bucket 'bucket'" in finding(report, "store").found
    assert {finding(report, name).outcome for name in ("workspace", "store", "clock")} == {"FAIL"}
    assert finding(report, "credentials").outcome == "warn"


def test_missing_credentials_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    report = examine("s3://bucket/x", None, ())
    assert finding(report, "credentials").outcome == "FAIL"
    assert "AWS_PROFILE" in finding(report, "credentials").mend
    assert "no usable AWS credentials" in finding(report, "store").found


@pytest.mark.parametrize(
    ("stages", "setting", "outcome", "text"),
    [
        (STAGES, "seed=1", "ok", "queues millrace-accelerator and millrace-cpu and 8 job definitions in us-east-1"),
        (list(Stage), "seed=1", "FAIL", "there is no active AWS Batch job definition 'millrace-cpu-infer'"),
        (("validate",), "seed=1", "FAIL", "there is no active AWS Batch job definition 'millrace-health'"),
        (STAGES, "batch.cpu_queue=mine", "FAIL", "there is no AWS Batch job queue 'mine'"),
    ],
)
def test_missing_queues_and_definitions_of_batch_fail(
    store: DirectoryStore,
    monkeypatch: pytest.MonkeyPatch,
    stages: tuple[str, ...],
    setting: str,
    outcome: str,
    text: str,
) -> None:
    server = BatchServer()
    monkeypatch.setenv("AWS_ENDPOINT_URL_BATCH", server.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    try:
        server.register_all(stages)
        found = finding(examine(store.uri, None, ["compute=batch", setting]), "batch")
    finally:
        server.stop()
    assert found.outcome == outcome
    assert text in found.found
