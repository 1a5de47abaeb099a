"""A Prefect server in the background of this machine: started when needed, found again, checked, stopped by pid.

It needs its password, made at the first start in a file that only its owner can read, and its CORS settings allow only
its own pages. If PREFECT_API_URL is set, that server is used and none is started; its operator sets its password in
PREFECT_API_AUTH_STRING. The server's database is only for display; results are in the workspace.
"""

import contextlib
import fcntl
import os
import re
import secrets
import socket
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from infra import background
from infra.prefect_health import HOST, PASSWORD_OF_CLIENT, TIMEOUT_SECONDS, get_json
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import HostError, ServerError
from tasks.foundation.passwords import holds_password, masked
from tasks.foundation.records import Record

PASSWORD_FILE = "server.password"
PASSWORD_OF_SERVER = "PREFECT_SERVER_API_AUTH_STRING"


def file_of_password(home: Path) -> Path:
    """Return the password's file. It holds `USER:PASSWORD`, and the server's pages ask for all of it."""
    return home / PASSWORD_FILE


def read_password(home: Path) -> str | None:
    """Return the password; None if no server was started for `home` yet."""
    try:
        return file_of_password(home).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def made_password(home: Path) -> str:
    """Return the password of a server about to start: the operator's, the earlier one, or a new one."""
    before = read_password(home)
    password = os.environ.get(PASSWORD_OF_SERVER) or before or f"millrace:{secrets.token_urlsafe(24)}"
    if password != before:
        new = home / f"{PASSWORD_FILE}.{os.getpid()}"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(password + "\n")
        new.replace(file_of_password(home))
    return password


USUAL_PORT = 4200
START_SECONDS = 120.0  # the first start migrates its database: 10 to 15 s on an idle machine
BUSY_SECONDS = 30.0  # a running server that doesn't answer within this time is replaced, or given up if it's elsewhere
_SLOW = f"no answer within {TIMEOUT_SECONDS:.0f} s"
_BUSY = (_SLOW, "HTTP 503")  # Prefect's answer while another process holds its database
OWNER = "MILLRACE_SERVER_OF"  # in the environment of a server: its state directory

_LOOPBACK = (f"http://{HOST}:", "http://localhost:", "http://[::1]:")

_SOCKS = re.compile(r"socks\d?[ah]?://", re.IGNORECASE)
_PRIVATE = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # the server inside a flow's process loses task records
}
# By default a request fails after six minutes if the server hangs, and after one minute if it is gone.
_IMPATIENT = {"PREFECT_CLIENT_MAX_RETRIES": "2", "PREFECT_API_REQUEST_TIMEOUT": "10"}
_SERVER = {
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_UI_V2_ENABLED": "false",  # its pages call an analytics host from the browser
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",  # after 90 days; only events by default
    # By default in memory: after a restart a held concurrency slot would never be free again.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}


class Server(Record):
    """A Prefect server that answers."""

    url: str
    ui_url: str
    home: str = Field(description="folder of its state and its log")
    pid: int | None = Field(description="process id; null: another process runs it, behind PREFECT_API_URL")
    started: bool = Field(description="true: this command started it")
    password_file: str | None = Field(
        default=None, description="file with the password of its pages; null: no password, or another process runs it"
    )


class _Entry(Record):
    """`server.json`: the last server process of a state directory."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/api"

    @property
    def words(self) -> tuple[str, ...]:
        """Parts of the process's command line."""
        return "prefect server start", f"--port {self.port}"


def state_home() -> Path:
    """Return the state folder of server and client: $PREFECT_HOME, else `.prefect` in the current directory."""
    return Path(os.environ.get("PREFECT_HOME") or ".prefect").expanduser().resolve()


def up(home: Path, say: Callable[[str], None] | None = None) -> Server:
    """Return a server that answers: the one behind PREFECT_API_URL, the one running for `home`, or a new one.

    Safe to call from several processes at once; later ones wait for the first. `say` is called before a server is
    started, because that takes a while.

    Raises:
        ServerError: the server behind PREFECT_API_URL doesn't answer.
        HostError: the local one doesn't start; gives the reason.
    """
    home = home.resolve()
    if url := os.environ.get("PREFECT_API_URL"):
        return _elsewhere(url.rstrip("/"), home)
    with _locked(home):
        entry = _read_entry(home)
        if entry is not None and _is_server(entry):
            if _wait(entry, home, BUSY_SECONDS):
                return _server(entry, home, started=False)
            _end(entry)
        _end_strays(home)
        if say is not None:
            say("starting the Prefect server; the first time takes some 15 seconds")
        return _server(_start(home), home, started=True)


def restart(server: Server, seconds: float) -> None:
    """Restart a server of this machine if it ended or hangs, on the same port, so that flows keep its address.

    Raises:
        HostError: it does not answer within `seconds`; gives the reason.
    """
    home = Path(server.home)
    with _locked(home):
        entry = _read_entry(home)
        if entry is not None and _is_server(entry):
            if _wait(entry, home, seconds / 2):
                return
            _end(entry)
        _end_strays(home)
        _start(home, entry.port if entry is not None else USUAL_PORT, seconds / 2)


def running(home: Path) -> Server | None:
    """Return the server behind PREFECT_API_URL, or the one that runs for `home`; None without either.

    Raises:
        ServerError: the server behind PREFECT_API_URL doesn't answer.
    """
    home = home.resolve()
    if url := os.environ.get("PREFECT_API_URL"):
        return _elsewhere(url.rstrip("/"), home)
    entry = _read_entry(home)
    if entry is None or not _is_server(entry) or not _answers(entry, home):
        return None
    return _server(entry, home, started=False)


def down(home: Path) -> bool:
    """Stop the server of `home` and its children, and no other process; return False if none was running.

    Raises:
        HostError: `home` is not writable.
    """
    home = home.resolve()
    if not home.is_dir():
        return _end_strays(home)
    with _locked(home):
        entry = _read_entry(home)
        running = entry is not None and _is_server(entry)
        if entry is not None and running:
            _end(entry)
        (home / "server.json").unlink(missing_ok=True)
        return _end_strays(home) or running


def client_environment(server: Server) -> dict[str, str]:
    """Return the environment in which flows use only `server`, without telemetry and with short timeouts.

    It holds the password; the one from the file is used for this machine only. Set it before Prefect is imported.
    """
    impatient = {name: os.environ.get(name, value) for name, value in _IMPATIENT.items()}
    environment = {**_PRIVATE, **impatient, "PREFECT_API_URL": server.url, "PREFECT_HOME": server.home}
    own = read_password(Path(server.home)) if server.url.startswith(_LOOPBACK) else None
    told = os.environ.get(PASSWORD_OF_CLIENT)
    if password := (told or own) if server.pid is None else (own or told):
        environment[PASSWORD_OF_CLIENT] = password
    if server.pid is not None:  # a company's proxy can't reach this machine's loopback
        direct = [os.environ.get("NO_PROXY") or os.environ.get("no_proxy", ""), HOST, "localhost"]
        environment["NO_PROXY"] = environment["no_proxy"] = ",".join(filter(None, direct))
        environment |= _without_socks()
    return environment


def _without_socks() -> dict[str, str]:
    """Return an empty value for each variable with a SOCKS proxy, and for its twin in small letters.

    Prefect's client, httpx, opens every proxy of the environment before it reads NO_PROXY, and without an extra package
    it fails at a SOCKS proxy.
    """
    socks = [name for name, value in os.environ.items() if name.lower().endswith("_proxy") and _SOCKS.match(value)]
    return {each: "" for name in socks for each in (name, name.lower())}


def _elsewhere(url: str, home: Path) -> Server:
    if holds_password(url):
        raise HostError(
            f"PREFECT_API_URL is {masked(url)}: an address is printed and kept, so leave the password out, and set "
            f"{PASSWORD_OF_CLIENT} to USER:PASSWORD"
        )
    deadline = time.monotonic() + BUSY_SECONDS
    while (trouble := _trouble_of(url)) in _BUSY and time.monotonic() < deadline:
        time.sleep(0.2)
    if trouble:
        raise ServerError(
            f"PREFECT_API_URL is {url}, but {url}/health does not answer: {trouble}. Start that server, correct the "
            "address (it ends in /api), or unset PREFECT_API_URL to use a server on this machine"
        )
    return Server(url=url, ui_url=url.removesuffix("/api"), home=str(home), pid=None, started=False)


def _trouble_of(url: str) -> str | None:
    """Return the reason that the API at `url` can't be used; None if it answers."""
    try:
        return None if get_json(f"{url}/health") is True else "something answers there, but it is not a Prefect API"
    except urllib.error.HTTPError as error:  # it answers, even if it refuses a request without credentials
        return None if error.code in (401, 403) else f"HTTP {error.code}"
    except TimeoutError:
        return _SLOW
    except (OSError, ValueError) as error:
        return _SLOW if isinstance(getattr(error, "reason", None), TimeoutError) else str(error)


def _server(entry: _Entry, home: Path, started: bool) -> Server:
    password_file = file_of_password(home)
    return Server(
        url=entry.url,
        ui_url=entry.url.removesuffix("/api"),
        home=str(home),
        pid=entry.pid,
        started=started,
        password_file=str(password_file) if password_file.exists() else None,
    )


def _start(home: Path, port: int = USUAL_PORT, seconds: float = START_SECONDS) -> _Entry:
    """Start a server on `port`, or on a free one if another process has it or takes it meanwhile."""
    port = _free_port(port)
    while True:
        log = home / "server.log"
        with log.open("ab") as output:
            begin = output.tell()
            command = (sys.executable, "-P", "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port))
            pid = background.start(command, output, home, _server_environment(home, port))
        entry = _Entry(pid=pid, port=port)
        DirectoryStore(home).write("server.json", entry.to_json())
        if _wait(entry, home, seconds):
            return entry
        exited = background.status(pid)
        _end(entry)
        (home / "server.json").unlink(missing_ok=True)
        said = log.read_bytes()[begin:].decode(errors="replace")
        if exited is not None and "already in use" in said:
            port = _free_port()
            continue
        ended = f"did not answer within {seconds:.0f} s" if exited is None else f"ended with status {exited}"
        tail = "\n".join(said.strip().splitlines()[-20:])
        raise HostError(f"the Prefect server on port {port} {ended}; {log} ends with:\n{tail}")


def _server_environment(home: Path, port: int) -> dict[str, str]:
    dropped = ("PREFECT_API_URL", PASSWORD_OF_CLIENT)
    return {
        **{name: value for name, value in os.environ.items() if name not in dropped},
        **_PRIVATE,
        **_SERVER,
        PASSWORD_OF_SERVER: made_password(home),
        # Its pages call 127.0.0.1, even if opened as localhost.
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": f"http://{HOST}:{port},http://localhost:{port}",
        **_without_socks(),
        OWNER: str(home),
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),  # the pages take the API's address from this
    }


def _wait(entry: _Entry, home: Path, seconds: float) -> bool:
    """Wait until the server of `entry` answers as the server of `home`; return False if it ends or is too slow."""
    deadline = time.monotonic() + seconds
    while _is_server(entry):
        if _answers(entry, home):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return False


def _answers(entry: _Entry, home: Path) -> bool:
    """Return True if the server is healthy and is `home`'s: another directory's server may have taken the port."""
    try:
        if get_json(f"{entry.url}/health") is not True:
            return False
        return get_json(f"{entry.url}/admin/settings", read_password(home))["home"] == str(home)
    except (OSError, ValueError):
        return False


def _end_strays(home: Path) -> bool:
    """End servers of `home` without a `server.json`, for example after the directory was deleted."""
    mark = f"{OWNER}={home}".encode()
    found = False
    for environment in Path("/proc").glob("[0-9]*/environ"):  # finds nothing on systems other than Linux
        with contextlib.suppress(OSError):
            pid = int(environment.parent.name)
            command = background.command_line(pid).split()
            if mark in environment.read_bytes().split(b"\0") and "prefect" in command and "--port" in command:
                _end(_Entry(pid=pid, port=int(command[command.index("--port") + 1])))
                found = True
    return found


def _end(entry: _Entry) -> None:
    background.end(entry.pid, *entry.words)


def _is_server(entry: _Entry) -> bool:
    return background.is_running(entry.pid, *entry.words)


def _read_entry(home: Path) -> _Entry | None:
    try:
        return _Entry.model_validate_json((home / "server.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    try:
        home.mkdir(parents=True, exist_ok=True)
        handle = (home / "server.lock").open("a", encoding="utf-8")
    except OSError as error:
        raise HostError(f"{home}, where Prefect keeps its state, is not writable: {error}; set PREFECT_HOME") from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _free_port(wanted: int = 0) -> int:
    """Return `wanted` if no process listens there, else any free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError:
            probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
