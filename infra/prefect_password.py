"""The password of a Prefect server that Millrace starts: made at the first start, in a file only its owner can read.

The operator of a server elsewhere sets its password in PREFECT_API_AUTH_STRING.
"""

import os
import secrets
from pathlib import Path

FILE = "server.password"
OF_SERVER = "PREFECT_SERVER_API_AUTH_STRING"
OF_CLIENT = "PREFECT_API_AUTH_STRING"


def file_of(home: Path) -> Path:
    """Return the password's file. It holds `USER:PASSWORD`, and the server's pages ask for all of it."""
    return home / FILE


def read(home: Path) -> str | None:
    """Return the password; None if no server was started for `home` yet."""
    try:
        return file_of(home).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def made(home: Path) -> str:
    """Return the password of a server about to start: the operator's, the earlier one, or a new one."""
    before = read(home)
    password = os.environ.get(OF_SERVER) or before or f"millrace:{secrets.token_urlsafe(24)}"
    if password != before:
        new = home / f"{FILE}.{os.getpid()}"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(password + "\n")
        new.replace(file_of(home))
    return password
