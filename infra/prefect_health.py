"""Whether a Prefect server answers. Without Prefect's client, which is slow to load and tries for minutes."""

import json
import urllib.error
import urllib.request
from typing import Any

HOST = "127.0.0.1"
_TIMEOUT_SECONDS = 5.0


def answers(url: str) -> bool:
    """Return whether the Prefect API at `url`, which ends in /api, is there and can use its database."""
    try:
        return get_json(f"{url}/health") is True
    except urllib.error.HTTPError as error:  # without the client's credentials it may refuse, but it is there
        return error.code in (401, 403)
    except (OSError, ValueError):
        return False


def get_json(url: str) -> Any:
    """Return the JSON at a URL; on the loopback without a proxy. Raises OSError, ValueError."""
    direct = [urllib.request.ProxyHandler({})] if f"//{HOST}:" in url else []
    with urllib.request.build_opener(*direct).open(url, timeout=_TIMEOUT_SECONDS) as answer:
        return json.load(answer)
