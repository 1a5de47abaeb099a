"""The check of who may use the Prefect server: whoever may, may run commands on its workers' machines.

It asks as a stranger would, without the password that the other checks send.
"""

from pathlib import Path

from infra import prefect_health, prefect_password
from infra.prefect_server import Server
from tasks.upkeep.check import CheckResult

_STRANGER = "http://millrace.invalid"  # no page has this origin
_OWN = "when no run is on: millrace down, then millrace up"
_ELSEWHERE = "set a password and its origins on that server: docs/operations.md#access"


def access(server: Server) -> CheckResult:
    """Warn of a server that asks for no password, that pages of other sites may ask, or whose password others read."""
    mend = _OWN if server.pid is not None else _ELSEWHERE
    if prefect_health.is_open(server.url):
        return CheckResult("warn", f"{server.url} asks for no password: whoever reaches it can run commands here", mend)
    try:
        if prefect_health.allowed_origin(server.url, _STRANGER) is not None:
            return CheckResult("warn", f"{server.url} lets the pages of any site in a browser ask it", mend)
    except OSError as error:
        return CheckResult("warn", f"{server.url} did not say whose pages may ask it: {error}", "")
    file = prefect_password.file_of(Path(server.home))
    if file.exists() and file.stat().st_mode & 0o077:
        return CheckResult("warn", f"others on this machine can read {file}", f"chmod 600 {file}")
    return CheckResult("ok", "the Prefect server asks for its password, and only its own pages may ask it")
