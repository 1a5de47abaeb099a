"""The instances that containers are placed on, one container each. A free one is used again, a lost one never."""

from __future__ import annotations

import bisect
import secrets

from tests.emulator.engine.aws import arn
from tests.emulator.engine.records import Host


class Hosts:
    def __init__(self) -> None:
        self._free: list[Host] = []
        self._alive: set[str] = set()
        self._made = 0

    def take(self) -> Host:
        """The oldest free host, or a new one."""
        if self._free:
            return self._free.pop(0)
        self._made += 1
        name = f"i-emu{secrets.token_hex(7)}"
        address = f"127.10.{self._made // 250}.{self._made % 250 + 2}"
        instance = arn("container-instance", f"emulator/{secrets.token_hex(16)}", service="ecs")
        host = Host(self._made, name, address, instance)
        self._alive.add(name)
        return host

    def give_back(self, host: Host) -> None:
        if host.id in self._alive:
            bisect.insort(self._free, host)

    def lose(self, host: Host) -> None:
        self._alive.discard(host.id)

    def alive(self, name: str) -> bool:
        return name in self._alive
