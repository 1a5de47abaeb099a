"""The password of a Prefect server that Millrace starts: made at its first start, in a file that its owner alone reads.

Of a server elsewhere only its operator knows the password: PREFECT_API_AUTH_STRING holds it.
"""

import os
import secrets
from pathlib import Path

FILE = "server.password"
OF_SERVER = "PREFECT_SERVER_API_AUTH_STRING"
OF_CLIENT = "PREFECT_API_AUTH_STRING"


def file_of(home: Path) -> Path:
    """Return the file that holds it, as a user name, a colon and a password; the pages ask for all of it."""
    return home / FILE


def read(home: Path) -> str | None:
    """Return the password; None if no server was started for `home` yet."""
    try:
        return file_of(home).read_text().strip() or None
    except FileNotFoundError:
        return None


def made(home: Path) -> str:
    """Return the password of the server that is about to start: the operator's own, the one before, or a new one."""
    before = read(home)
    password = os.environ.get(OF_SERVER) or before or f"millrace:{secrets.token_urlsafe(24)}"
    if password != before:
        new = home / f"{FILE}.{os.getpid()}"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password + "\n")
        new.replace(file_of(home))
    return password
