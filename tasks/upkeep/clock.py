"""The check of this machine's clock against the Date header of a server's answer.

Leases, deadlines and AWS signatures need clocks that agree. The header has whole seconds, which is enough.
"""

import email.utils
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from infra.prefect_server import HOST
from tasks.upkeep.check import CheckResult

WARN_SECONDS, FAIL_SECONDS = 5.0, 60.0
_ANSWER_SECONDS = 5.0


def clock(server: str, read_date: Callable[[], str | None]) -> CheckResult:
    """Compare this clock with the one of `server`; `read_date` returns the Date header of its answer."""
    before = time.time()
    date = read_date()
    after = time.time()
    if date is None:
        return CheckResult("warn", f"the answer of {server} has no Date header, so the clock was not compared")
    theirs = email.utils.parsedate_to_datetime(date).timestamp()
    # The answer was dated between `before` and `after`, and its date is cut to a second.
    off = before - (theirs + 1) if before > theirs + 1 else after - theirs if after < theirs else 0.0
    found = (
        f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} {server}" if abs(off) >= 1 else f"agrees with {server}"
    )
    mend = "set the clock with chrony or systemd-timesyncd: timedatectl set-ntp true"
    if abs(off) > FAIL_SECONDS:
        return CheckResult("FAIL", f"{found}; leases of this machine end too early or too late", mend)
    return CheckResult("warn" if abs(off) > WARN_SECONDS else "ok", found, mend if abs(off) > WARN_SECONDS else "")


def date_of_server(api_url: str) -> str | None:
    """Return the Date header of the Prefect server's answer, also of an error."""
    direct = [urllib.request.ProxyHandler({})] if f"//{HOST}:" in api_url else []
    try:
        with urllib.request.build_opener(*direct).open(f"{api_url}/health", timeout=_ANSWER_SECONDS) as answer:
            return answer.headers["Date"]
    except urllib.error.HTTPError as error:
        return error.headers["Date"]
