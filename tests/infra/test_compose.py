"""infra/compose.yaml: valid for Docker Compose, closed to other machines, and its commands started without Docker."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from tests.support.processes.services import ROOT, running
from tests.support.workspace.served import make_served

FILE = ROOT / "infra/compose.yaml"
TEXT = FILE.read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load(TEXT)["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "millrace-local"}
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
PASSWORD = "of-your-own"
SECONDS = 180.0


def test_docker_compose_would_take_it() -> None:
    schema = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.validate(yaml.safe_load(TEXT), json.loads(schema.read_text(encoding="utf-8")))
    assert set(OURS) == {"server", "worker", "pages", "online"}
    for service in OURS.values():
        assert (FILE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    named = {str(volume).partition(":")[0] for service in SERVICES.values() for volume in service["volumes"]}
    assert {volume for volume in named if volume.isidentifier()} == set(yaml.safe_load(TEXT)["volumes"])


def test_other_machines_reach_none_of_it_and_no_password_is_a_default() -> None:
    for name, service in SERVICES.items():
        assert service["network_mode"] == "host", name
        assert "ports" not in service
    assert set(re.findall(r"\d+\.\d+\.\d+\.\d+", TEXT)) == {"127.0.0.1"}
    told = [found[2] for found in VARIABLE.findall(TEXT) if found[0] == "MILLRACE_PASSWORD" and found[1]]
    assert told == ["write it into infra/.env"]
    assert SERVICES["postgres"]["environment"]["POSTGRES_INITDB_ARGS"] == "--auth-host=scram-sha-256"
    assert re.search(r":\d+\.\d+\.\d+-pg\d+$", SERVICES["postgres"]["image"])


def filled(value: str, given: dict[str, str]) -> str:
    """Put the variables into a value as Docker Compose does."""
    return VARIABLE.sub(lambda found: given.get(found[1]) or found[3] or "", value)


def free_ports(names: list[str]) -> dict[str, str]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in names]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return {name: str(each.getsockname()[1]) for name, each in zip(names, sockets, strict=True)}


def wait_for(what: Callable[[], bool], logs: Path) -> None:
    until = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if what():
                return
        said = {log.name: log.read_text()[-2000:] for log in logs.glob("*.log")}
        assert time.monotonic() < until, said
        time.sleep(0.5)


@pytest.mark.proof
def test_the_same_commands_run_without_docker(tmp_path: Path) -> None:
    """All but Postgres, whose server here lacks the extension pg_trgm that Prefect needs: it has SQLite instead."""
    make_served(tmp_path, "release.exports=[onnx]", spans=("2021-Q1",))
    given = free_ports(sorted({name for name, *_ in VARIABLE.findall(TEXT) if name.endswith("_PORT")}))
    given["MILLRACE_PASSWORD"] = PASSWORD
    server, pages, online = (
        f"http://127.0.0.1:{given[f'MILLRACE_{name}_PORT']}" for name in ("SERVER", "PAGES", "ONLINE")
    )
    credentials = base64.b64encode(f"millrace:{PASSWORD}".encode()).decode()
    proof = {"Authorization": f"Basic {credentials}"}

    def start(name: str, running_now: contextlib.ExitStack) -> None:
        environment = {key: filled(value, given) for key, value in OURS[name]["environment"].items()}
        environment = {key: value.replace("/var/lib/millrace", str(tmp_path)) for key, value in environment.items()}
        environment.pop("PREFECT_SERVER_DATABASE_CONNECTION_URL", None)
        first, *rest = (filled(word, given) for word in OURS[name]["command"])
        command = [str(Path(sys.executable).with_name(first)), *rest]
        running_now.enter_context(running(command, tmp_path / f"{name}.log", os.environ | environment))

    def has_a_worker() -> bool:
        found = httpx.post(f"{server}/api/work_pools/millrace/workers/filter", json={}, headers=proof)
        return found.status_code == 200 and [each["status"] for each in found.json()] == ["ONLINE"]

    with contextlib.ExitStack() as running_now:
        for name in ("server", "pages", "online"):
            start(name, running_now)
        wait_for(lambda: httpx.get(f"{server}/api/health").json() is True, tmp_path)
        start("worker", running_now)
        assert httpx.post(f"{server}/api/flows/filter", json={}).status_code == 401
        wait_for(has_a_worker, tmp_path)
        wait_for(lambda: httpx.get(f"{pages}/", follow_redirects=True).status_code == 200, tmp_path)
        wait_for(lambda: httpx.get(f"{online}/healthz").json()["release"] == 2, tmp_path)
        assert len(httpx.post(f"{online}/embed", json={"queries": ["lamp"]}).json()["vectors"]) == 1
