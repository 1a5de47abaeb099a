"""The timeline of a run, sent by OTLP/HTTP to the collector that OpenTelemetry's own variables name.

Nothing here may disturb a run: each error is returned as a sentence, and all together takes at most `PATIENCE_SECONDS`.
A lost timeline is not sent again by itself; `millrace report --otlp` makes the same one at any time.
"""

import os
import re
import threading
import urllib.parse
from collections.abc import Mapping

import httpx

from tasks.monitoring.timeline import timeline
from tasks.runs.run import Run

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
OF_TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
PATIENCE_SECONDS = 10.0


def address(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL that takes traces, as OpenTelemetry's specification derives it; None if no variable is set."""
    if own := environment.get(OF_TRACES, "").strip():
        return own
    base = environment.get(ENDPOINT, "").strip()
    return f"{base.rstrip('/')}/v1/traces" if base else None


def send_timeline(run: Run, environment: Mapping[str, str] = os.environ) -> str:
    """Send the run's timeline; return the reason if that failed, and nothing if it was taken or nobody wants it."""
    url = address(environment)
    if url is None:
        return ""
    found: list[str] = []
    # A receiver may answer byte by byte, which no timeout of a connection ends.
    sender = threading.Thread(target=lambda: found.append(_sent(run, url, environment)), name="otlp", daemon=True)
    sender.start()
    sender.join(PATIENCE_SECONDS)
    return found[0] if found else f"{_plain(url)} did not answer within {PATIENCE_SECONDS:g} s"


def _sent(run: Run, url: str, environment: Mapping[str, str]) -> str:
    try:
        headers = {**_headers(environment.get(HEADERS, "")), "Content-Type": "application/json"}
        answer = httpx.post(url, content=timeline(run), headers=headers, timeout=PATIENCE_SECONDS)
    except Exception as error:  # a timeline must not stop a run
        return f"{_plain(url)}: {type(error).__name__}: {error}"
    return "" if answer.is_success else f"{_plain(url)} answered {answer.status_code}: {answer.text[:200]}"


def _headers(text: str) -> dict[str, str]:
    """Return the headers of `name=value,name=value`, whose values are encoded as in a URL."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip(): urllib.parse.unquote(value.strip()) for name, _, value in pairs}


def _plain(url: str) -> str:
    """Return the address without a password in it, for logs."""
    return re.sub(r"//[^/@]*@", "//", url)
