"""A Prefect API at an address: whether it answers, to whom it is open, and which pages may call it."""

import base64
import json
import urllib.error
import urllib.request
from typing import Any

HOST = "127.0.0.1"
TIMEOUT_SECONDS = 5.0
PASSWORD_OF_CLIENT = "PREFECT_API_AUTH_STRING"  # the variable that holds it


def answers(url: str) -> bool:
    """Return True if the Prefect API at `url`, which ends in /api, answers and can use its database."""
    try:
        return get_json(f"{url}/health") is True
    except urllib.error.HTTPError as error:  # it answers, even if it refuses a request without credentials
        return error.code in (401, 403)
    except (OSError, ValueError):
        return False


def is_open(url: str) -> bool:
    """Return True if the Prefect API at `url` shows its settings to anyone, without a password."""
    try:
        return "home" in get_json(f"{url}/admin/settings")
    except (OSError, ValueError, TypeError):
        return False


def allowed_origin(url: str, origin: str) -> str | None:
    """Return the allowed CORS origin of the API at `url`, as it answers a page of `origin`; `*` is any.

    Raises OSError.
    """
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    try:
        with _opened(urllib.request.Request(f"{url}/flows/filter", headers=headers, method="OPTIONS")) as answer:
            return answer.headers["Access-Control-Allow-Origin"]
    except urllib.error.HTTPError as error:
        return error.headers["Access-Control-Allow-Origin"]


def get_json(url: str, password: str | None = None) -> Any:
    """Return the JSON at a URL; uses no proxy for the loopback. Raises OSError, ValueError."""
    token = base64.b64encode((password or "").encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"} if password else {})
    with _opened(request) as answer:
        return json.load(answer)


def _opened(request: urllib.request.Request) -> Any:
    direct = [urllib.request.ProxyHandler({})] if f"//{HOST}:" in request.full_url else []
    return urllib.request.build_opener(*direct).open(request, timeout=TIMEOUT_SECONDS)
