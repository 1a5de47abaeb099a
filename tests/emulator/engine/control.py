"""The route for tests: faults to cause, calls made, containers that ran. Plain JSON, nothing of AWS."""

from __future__ import annotations

import time
from dataclasses import fields

from tests.emulator.containers.containers import Life
from tests.emulator.engine import faults as kinds
from tests.emulator.engine import shapes
from tests.emulator.engine.aws import Document, ServiceError
from tests.emulator.engine.faults import CallFault, Delays, Faults, Hiding, Hold, Strike
from tests.emulator.engine.logs import Logs
from tests.emulator.engine.state_machine import Engine
from tests.emulator.machine.credentials import Credentials


class Control:
    def __init__(self, engine: Engine, faults: Faults, logs: Logs, credentials: Credentials) -> None:
        self._engine, self._faults, self._logs, self._credentials = engine, faults, logs, credentials
        self.calls: list[Document] = []

    def note(self, operation: str, request: Document, outcome: str) -> None:
        self.calls.append({"operation": operation, "at": time.time(), "outcome": outcome, "request": request})

    def get(self, what: str) -> Document:
        """Raises ServiceError: there is nothing of that name."""
        if what == "calls":
            return {"calls": self.calls}
        if what == "live":
            return {"lives": [_life(one) for one in self._engine.containers.lives]}
        if what == "credentials":
            return {"requests": self._credentials.requests}
        if what == "jobs":
            return {"jobs": [shapes.describe(job) for job in self._engine.jobs.values() if not job.parent]}
        raise _unknown(what)

    def post(self, what: str, document: Document) -> Document:
        """Raises ServiceError: there is nothing of that name, or it doesn't take this."""
        match what:
            case "faults":
                self._add(kinds.parse(document))
            case "delays":
                self._delay(document)
            case "release":
                self._faults.holds.clear()
            case "forgive":
                self._faults.calls.clear()
            case "forget":
                self._faults.forget()
                self._logs.forget()
                self._credentials.forget()
                self._engine.forget()
                self.calls.clear()
            case _:
                raise _unknown(what)
        self._engine.wake()
        return {}

    def _add(self, fault: CallFault | Hold | Hiding | Strike) -> None:
        match fault:
            case CallFault():
                self._faults.calls.append(fault)
            case Hold():
                self._faults.holds.append(fault)
            case Hiding():
                self._faults.hidings.append(fault)
            case Strike():
                self._faults.strikes.append(fault)

    def _delay(self, document: Document) -> None:
        names = {one.name for one in fields(Delays)}
        for key, seconds in document.items():
            if key == "logs":
                self._logs.delay_seconds = seconds
            elif key in names:
                setattr(self._faults.delays, key, seconds)
            else:
                raise _unknown(f"delay of {key}")


def _life(life: Life) -> Document:
    container, job = life.container, life.job
    return {
        "name": job.name,
        "job": job.id,
        "base": job.base_id,
        "node": container.node,
        "attempt": life.attempt,
        "host": container.host.id,
        "started": container.live_from,
        "stopped": container.live_until,
    }


def _unknown(what: str) -> ServiceError:
    return ServiceError(f"the emulator has no {what}", "NotFound", 404)
