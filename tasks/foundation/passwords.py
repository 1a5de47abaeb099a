"""Find and mask passwords in texts; no setting, record, page or message of Millrace contains one.

A heuristic by form and name, not by value: it misses a password in other forms.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from tasks.foundation.errors import ConfigError

MASK = "***"
_OF_USER = re.compile(r"(://[^/@\s:]*:)([^/@\s]+)(?=@)")  # http://user:PASSWORD@host
# name=PASSWORD in a URL query, a database's connection string or a setting. Readers decode the name.
_NAMED = re.compile(r"([A-Za-z0-9_.%-]+)(\s*=\s*)('[^']*'|\"[^\"]*\"|[^\s&;#'\"]+)")
_NAMES = re.compile(
    r"(^auth|(^|_)(password|passwd|passphrase|pwd|pass|secret|token|authorization|signature|sig"
    r"|(api|access|secret|private|account)_?key))$"
)


def masked(text: str) -> str:
    """Return the text with `***` for each password in it."""
    return _NAMED.sub(_without_value, _OF_USER.sub(rf"\1{MASK}", text))


def holds_password(text: str) -> bool:
    """Return True if the text, for example a URL, a connection string or a setting, contains a password."""
    return masked(text) != text


def read_token(file: Path | None) -> str | None:
    """Return the token in the file of `--token-file`. Raises ConfigError: it can't be read, or holds none."""
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token-file: {file} can't be read: {error}") from error
    if not token:
        raise ConfigError(f"--token-file: {file} holds no token; write one line of random letters into it")
    return token


def _without_value(found: re.Match[str]) -> str:
    name = unquote(found[1]).rpartition(".")[2].lower().replace("-", "_")
    return f"{found[1]}{found[2]}{MASK}" if _NAMES.search(name) else found[0]
