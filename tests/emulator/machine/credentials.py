"""The ECS agent's endpoint for the credentials of a task's role: one on each instance, and throttled there.

The agent answers 40 requests a second, and 60 at once; all containers of an instance share that.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.emulator.engine.aws import Document, ServiceError
from tests.emulator.engine.records import Container, Job

A_SECOND, AT_ONCE = 40.0, 60.0
_UNTIL = "2099-01-01T00:00:00Z"


@dataclass
class _Bucket:
    left: float = AT_ONCE
    at: float = field(default_factory=time.monotonic)

    def take(self) -> bool:
        now = time.monotonic()
        self.left = min(AT_ONCE, self.left + (now - self.at) * A_SECOND)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class Credentials:
    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()  # by instance, those refused too
        self._buckets: dict[str, _Bucket] = {}

    def give(self, job: Job, container: Container) -> Document:
        """Those of a running container's role. Raises ServiceError: its instance was asked too often."""
        instance = container.host.id
        self.requests[instance] += 1
        if not self._buckets.setdefault(instance, _Bucket()).take():
            raise ServiceError("Too many requests", "ThrottlingException", 429)
        return {
            "RoleArn": container.properties.get("jobRoleArn", ""),
            "AccessKeyId": "ASIAEMULATED",
            "SecretAccessKey": "emulated",
            "Token": job.id,
            "Expiration": _UNTIL,
        }

    def forget(self) -> None:
        self.requests.clear()
        self._buckets.clear()
