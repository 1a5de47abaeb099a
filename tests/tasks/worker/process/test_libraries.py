import getpass
import os

import pytest

from tasks.worker.process.threads import name_user


def test_a_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch):
    """torch asks for it, and would fail in a container whose image knows no such user."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    name_user()
    assert getpass.getuser() == "user-987654"
