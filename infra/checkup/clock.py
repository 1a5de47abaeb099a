"""This machine's clock against those that answers from elsewhere are dated with.

Leases, deadlines and AWS's signatures rest on clocks that agree; an answer's date has whole seconds, which is enough.
"""

from __future__ import annotations

import email.utils
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from infra.checkup.finding import Seen
from infra.prefect_server import HOST

WARN_SECONDS, FAIL_SECONDS = 5.0, 60.0
_ANSWER_SECONDS = 5.0


def clock(whose: str, ask: Callable[[], str | None]) -> Seen:
    """How far this clock is from that of `whose`, by the Date header that `ask` brings."""
    before = time.time()
    date = ask()
    after = time.time()
    if date is None:
        return Seen("warn", f"{whose} does not date its answers, so the clock was not compared")
    told = email.utils.parsedate_to_datetime(date).timestamp()
    # The answer was dated between `before` and `after`, and cut to a second.
    off = before - (told + 1) if before > told + 1 else after - told if after < told else 0.0
    found = (
        f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} {whose}" if abs(off) >= 1 else f"agrees with {whose}"
    )
    mend = "let chrony or systemd-timesyncd set the clock: timedatectl set-ntp true"
    if abs(off) > FAIL_SECONDS:
        return Seen("FAIL", f"{found}; a lease that this machine takes looks over, or never ends", mend)
    return Seen("warn" if abs(off) > WARN_SECONDS else "ok", found, mend if abs(off) > WARN_SECONDS else "")


def date_of_server(api_url: str) -> str | None:
    """The Date header of the Prefect server's answer, whatever it answers."""
    direct = [urllib.request.ProxyHandler({})] if f"//{HOST}:" in api_url else []
    try:
        with urllib.request.build_opener(*direct).open(f"{api_url}/health", timeout=_ANSWER_SECONDS) as answer:
            return answer.headers["Date"]
    except urllib.error.HTTPError as error:
        return error.headers["Date"]
