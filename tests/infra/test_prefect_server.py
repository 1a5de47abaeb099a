"""The real background server: processes, ports and state folders. Each server is ended by its pid."""

import http.server
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra import background, prefect_health, prefect_server
from infra.prefect_server import Server, client_environment, down, state_home, up
from tasks.doctor import examine
from tasks.foundation.errors import HostError, ServerError
from tests.support.processes.prefect_server import credentials, database_of

UP = "import sys, pathlib; from infra.prefect_server import up; print(up(pathlib.Path(sys.argv[1])).model_dump_json())"
ROOT = Path(prefect_server.__file__).resolve().parent.parent


def get(url: str, server: Server | None = None) -> Any:
    return httpx.get(url, auth=credentials(server) if server else None, timeout=10).raise_for_status().json()


def is_running(pid: int) -> bool:
    return bool(background.command_line(pid))


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """The results of two calls of `up` at once, in a folder with an older server's state."""
    home = tmp_path_factory.mktemp("prefect")
    (home / "server.json").write_text(json.dumps({"pid": os.getpid(), "port": 4200}))
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    racers = [
        subprocess.Popen([sys.executable, "-c", UP, str(home)], stdout=subprocess.PIPE, cwd=ROOT, env=environment)
        for _ in range(2)
    ]
    try:
        yield [Server.model_validate_json(racer.communicate(timeout=200)[0]) for racer in racers]
    finally:
        down(home)


def test_two_calls_at_once_start_one_server(raced: list[Server]) -> None:
    assert raced[0].url == raced[1].url
    assert raced[0].pid == raced[1].pid != os.getpid()
    assert sorted(server.started for server in raced) == [False, True]


def test_a_running_server_is_found_again(raced: list[Server]) -> None:
    assert up(Path(raced[0].home)) == raced[0].model_copy(update={"started": False})


def test_it_serves_the_classic_pages_and_sends_no_analytics(raced: list[Server]) -> None:
    assert get(f"{raced[0].url}/health") is True
    pages = get(f"{raced[0].ui_url}/ui-settings")
    assert (pages["default_ui"], pages["api_url"]) == ("v1", raced[0].url)
    settings = get(f"{raced[0].url}/admin/settings", raced[0])
    assert settings["server"]["analytics_enabled"] is False
    assert settings["server"]["ephemeral"]["enabled"] is False
    assert settings["server"]["ui"]["show_promotional_content"] is False
    with urllib.request.urlopen(urllib.request.Request(raced[0].ui_url, headers={"Accept": "text/html"})) as answer:
        assert answer.url.rstrip("/") == raced[0].ui_url  # not sent on to /v2
        assert b"<title>Prefect Server</title>" in answer.read()


def test_it_answers_only_who_knows_the_password_of_its_file(raced: list[Server]) -> None:
    url, new = f"{raced[0].url}/flows/", {"name": "made"}
    assert httpx.post(url, json=new).status_code == 401
    assert httpx.post(url, json=new, auth=("millrace", "guessed")).status_code == 401
    assert httpx.post(url, json=new, auth=credentials(raced[0])).status_code == 201
    file = Path(str(raced[0].password_file))
    assert file == Path(raced[0].home) / "server.password"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    password = file.read_text().strip()
    assert len(password) > 30
    assert raced[0].pid is not None
    assert password not in background.command_line(raced[0].pid)
    assert password not in (Path(raced[0].home) / "server.log").read_text()


def test_a_browser_lets_only_its_own_pages_ask_it(raced: list[Server]) -> None:
    origins = [raced[0].ui_url, raced[0].ui_url.replace("127.0.0.1", "localhost"), "http://evil.example", "null"]
    asked = [
        httpx.options(
            f"{raced[0].url}/flows/filter",
            headers={"Origin": origin, "Access-Control-Request-Method": "POST"},
        ).headers.get("Access-Control-Allow-Origin")
        for origin in origins
    ]
    assert asked == [*origins[:2], None, None]


def test_a_server_named_in_the_environment_is_used(raced: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", raced[0].url)
    named = {"started": False, "pid": None, "password_file": None}
    assert up(Path(raced[0].home)) == raced[0].model_copy(update=named)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, prefect_tables: Path) -> Iterator[tuple[Server, int]]:
    """A server whose port was taken between the choice and the start, and that port."""
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as taken, pytest.MonkeyPatch.context() as patch:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setattr(prefect_server, "USUAL_PORT", port)
        find = prefect_server._free_port
        patch.setattr(prefect_server, "_free_port", lambda wanted=0: wanted or find())
        try:
            with database_of(home, prefect_tables):
                server = up(home)
            yield server, port
        finally:
            down(home)


def test_a_port_taken_during_the_start_is_replaced_by_another(moved: tuple[Server, int]) -> None:
    server, taken = moved
    assert server.started
    assert not server.url.startswith(f"http://127.0.0.1:{taken}/")


def test_a_server_whose_state_was_deleted_is_still_stopped(moved: tuple[Server, int]) -> None:
    server, _ = moved
    assert server.pid is not None
    assert is_running(server.pid)
    os.rename(server.home, f"{server.home}-deleted")  # at once: the server still writes into it
    assert down(Path(server.home)) is True
    assert not is_running(server.pid)
    assert down(Path(server.home)) is False


def test_down_ends_no_other_process(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text(json.dumps({"pid": os.getpid(), "port": 4200}))
    assert down(tmp_path) is False
    assert not (tmp_path / "server.json").exists()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "prefect.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(HostError, match=r"(?s)server\.log .*database"):
        up(tmp_path)
    assert not (tmp_path / "server.json").exists()


class _Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


def test_an_address_with_a_password_is_refused_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://ops:geheim@127.0.0.1:1/api")
    with pytest.raises(HostError, match=r"PREFECT_API_AUTH_STRING") as caught:
        up(tmp_path)
    assert "geheim" not in str(caught.value)


def test_an_address_that_is_no_prefect_api_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hello) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{web.server_port}"
        monkeypatch.setenv("PREFECT_API_URL", url)
        try:
            with pytest.raises(ServerError, match=rf"{url}/health .*unset"):
                up(tmp_path)
        finally:
            web.shutdown()


def test_a_server_elsewhere_that_is_busy_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([503, 0, 200])  # 0: it hangs
    closed = threading.Event()

    class Busy(_Hello):
        def do_GET(self) -> None:
            if code := next(answers):
                self.send_response(code)
                self.end_headers()
                self.wfile.write(b"true")
            else:
                closed.wait()

    monkeypatch.setattr(prefect_health, "TIMEOUT_SECONDS", 0.5)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{web.server_port}/api")
        try:
            assert up(tmp_path).url.endswith("/api")
        finally:
            closed.set()
            web.shutdown()
    assert list(answers) == []


def test_an_address_without_a_listener_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api/")
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:1/api, but"):
        up(tmp_path)


def test_flows_get_one_server_and_no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intra.example")
    server = Server(url="http://127.0.0.1:9/api", ui_url="http://127.0.0.1:9", home="/h", pid=1, started=True)
    environment = client_environment(server)
    assert environment["PREFECT_API_URL"] == server.url
    assert environment["PREFECT_HOME"] == "/h"
    assert environment["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] == "false"
    assert environment["DO_NOT_TRACK"] == "1"
    assert environment["NO_PROXY"] == "intra.example,127.0.0.1,localhost"


@pytest.mark.parametrize("name", ["ALL_PROXY", "all_proxy", "HTTPS_PROXY"])
def test_a_socks_proxy_does_not_keep_flows_from_their_own_server(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "socks5h://proxy.example:1080")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    with pytest.raises(ImportError, match="socksio"):  # else httpx no longer needs this
        httpx.Client()
    server = Server(url="http://127.0.0.1:9/api", ui_url="http://127.0.0.1:9", home="/h", pid=1, started=True)
    for variable, value in client_environment(server).items():
        monkeypatch.setenv(variable, value)
    httpx.Client().close()
    assert os.environ["HTTP_PROXY"] == "http://proxy.example:3128"


def test_the_password_of_this_machines_server_is_sent_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.password").write_text("millrace:own\n")

    def sent(url: str, pid: int | None) -> str | None:
        server = Server(url=url, ui_url="", home=str(tmp_path), pid=pid, started=False)
        return client_environment(server).get("PREFECT_API_AUTH_STRING")

    assert sent("http://127.0.0.1:4200/api", 1) == "millrace:own"
    assert sent("http://127.0.0.1:4200/api", None) == "millrace:own"
    assert sent("http://prefect.example:4200/api", None) is None
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "ops:theirs")
    assert sent("http://prefect.example:4200/api", None) == "ops:theirs"
    assert sent("http://127.0.0.1:4200/api", 1) == "millrace:own"


def test_the_operators_own_password_is_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prefect_server.made_password(tmp_path)
    assert prefect_server.made_password(tmp_path) == made
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "ops:chosen")
    assert prefect_server.made_password(tmp_path) == "ops:chosen" == prefect_server.read_password(tmp_path)


def test_a_server_whose_password_is_gone_goes_on_and_is_found_open(
    tmp_path: Path, prefect_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = prefect_server._server_environment

    def open_to_all(home: Path, port: int) -> dict[str, str]:
        environment = closed(home, port)
        prefect_server.file_of_password(home).unlink()
        del environment["PREFECT_SERVER_API_AUTH_STRING"], environment["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"]
        return environment

    monkeypatch.setattr(prefect_server, "_server_environment", open_to_all)
    try:
        with database_of(tmp_path, prefect_tables):
            opened = up(tmp_path)
        found = up(tmp_path)
        assert (found.pid, found.password_file) == (opened.pid, None)
        seen = examine.access(found)
        assert (seen.outcome, "asks for no password" in seen.found) == ("warn", True)
    finally:
        down(tmp_path)


def test_the_state_is_in_prefect_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "elsewhere"))
    assert state_home() == tmp_path / "elsewhere"
    monkeypatch.delenv("PREFECT_HOME")
    monkeypatch.chdir(tmp_path)
    assert state_home() == tmp_path / ".prefect"
