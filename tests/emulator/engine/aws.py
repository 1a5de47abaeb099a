"""What all parts write as AWS does: ARNs, times in milliseconds since 1970, refusals, pages."""

from __future__ import annotations

import time
from typing import Any

Document = dict[str, Any]  # JSON of a request or of an answer

REGION, ACCOUNT = "us-east-1", "123456789012"


def arn(kind: str, name: str, service: str = "batch") -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{kind}/{name}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class ServiceError(Exception):
    """A refusal, in the words and with the HTTP status of the service."""

    def __init__(self, message: str, code: str = "ClientException", status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status


def page(items: list[Any], request: Document, most: int) -> tuple[list[Any], Document]:
    """The page that `nextToken` and `maxResults` ask for, and the token of the next one as part of the answer.

    Raises:
        ServiceError: the token or the number is not valid.
    """
    size = request.get("maxResults", most)
    token = request.get("nextToken", "0")
    if not 1 <= size <= most:
        raise ServiceError(f"maxResults must be between 1 and {most}.")
    if not token.isdecimal():
        raise ServiceError("Invalid nextToken.")
    first = int(token)
    last = first + size
    return items[first:last], {"nextToken": str(last)} if last < len(items) else {}
