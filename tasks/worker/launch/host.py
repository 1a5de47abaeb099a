"""The name of this machine: its EC2 instance id, or its host name where there is no EC2."""

import http.client
import os
import socket
import urllib.request

TIMEOUT_SECONDS = 1.0
_SERVICE = "http://169.254.169.254/"
_TOKEN_SECONDS = "60"


def this_host() -> str:
    """Return the name, from the instance metadata service (IMDSv2) unless botocore's own variable switches it off."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "false").lower() == "true":
        return socket.gethostname()
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _SERVICE
    base = base if base.endswith("/") else f"{base}/"
    try:
        token = _ask(f"{base}latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": _TOKEN_SECONDS})
        return _ask(f"{base}latest/meta-data/instance-id", "GET", {"X-aws-ec2-metadata-token": token})
    except (OSError, http.client.HTTPException, ValueError):
        return socket.gethostname()


def _ask(url: str, method: str, headers: dict[str, str]) -> str:
    """Return the answer as text. Raises ValueError if it is empty."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the service is never behind a proxy
    with opener.open(urllib.request.Request(url, method=method, headers=headers), timeout=TIMEOUT_SECONDS) as reply:
        answer = reply.read(1024).decode("ascii").strip()
    if not answer:
        raise ValueError(f"{url} gave an empty answer")
    return answer
