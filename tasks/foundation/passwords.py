"""Decides which texts hold a password, and masks it; no setting, record, page or message of Millrace has one.

A heuristic of forms and names, not of values: a password in a place of another kind stays unknown here.
"""

import re
from urllib.parse import unquote

MASK = "***"
_OF_USER = re.compile(r"(://[^/@\s:]*:)([^/@\s]+)(?=@)")  # http://user:PASSWORD@host
# name=PASSWORD in a query, in the words of a database's address, or of a setting. Readers decode the name.
_NAMED = re.compile(r"([A-Za-z0-9_.%-]+)(\s*=\s*)('[^']*'|\"[^\"]*\"|[^\s&;#'\"]+)")
_NAMES = re.compile(
    r"(^auth|(^|_)(password|passwd|passphrase|pwd|pass|secret|token|authorization|signature|sig"
    r"|(api|access|secret|private|account)_?key))$"
)


def masked(text: str) -> str:
    """Return the text with `***` for each password in it."""
    return _NAMED.sub(_without_value, _OF_USER.sub(rf"\1{MASK}", text))


def holds_password(text: str) -> bool:
    """Return whether there is one in an address, in the words of a connection, or in a setting."""
    return masked(text) != text


def _without_value(found: re.Match[str]) -> str:
    name = unquote(found[1]).rpartition(".")[2].lower().replace("-", "_")
    return f"{found[1]}{found[2]}{MASK}" if _NAMES.search(name) else found[0]
