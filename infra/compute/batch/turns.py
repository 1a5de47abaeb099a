"""One stage's turn in a job that does several: the job as AWS Batch would show it if it did that stage alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from infra.compute.batch.attempts import Boots, JobPart
from infra.compute.batch.job_detail import JobDetail, Run
from infra.handover import Finished, Owner, find_finished, find_owner
from infra.store.base import Store


@dataclass(frozen=True)
class Turn:
    """The turn of a stage. `owner` is None until the job has begun the stage, `finished` until it waits after it."""

    handed_over: bool
    owner: Owner | None = None
    finished: Finished | None = None

    def look(self, store: Store, prefix: str, job: str) -> Turn:
        """Return the turn as it is known now; no file is read twice."""
        owner, finished = self.owner, self.finished
        if owner is None and (found := find_owner(store, prefix)) is not None and found.job == job:
            owner = found
        if owner is not None and finished is None:
            finished = find_finished(store, prefix)
        return replace(self, owner=owner, finished=finished)

    @property
    def is_awaited(self) -> bool:
        """True until the living job takes the stage that it was handed."""
        return self.handed_over and self.owner is None

    def parts(self, parts: Sequence[JobPart], boots: Boots) -> list[JobPart]:
        """Return the parts of the job in this turn, unchanged before it. Adds the begin of the turn to `boots`."""
        if self.owner is not None and self.owner.taken_at is not None:
            boots.update({(part.detail.id, 1): self.owner.free_since or self.owner.taken_at for part in parts})
        return [
            replace(part, detail=self.of(part.detail), nodes=tuple(self.of(node) for node in part.nodes))
            for part in parts
        ]

    def of(self, job: JobDetail) -> JobDetail:
        """Return a job, or a node of one, with the tries of this turn alone; succeeded once the stage is finished."""
        first = self.owner.try_number if self.owner else 1
        runs, now = job.runs[first - 1 :], job.now
        if self.owner is not None and self.owner.taken_at is not None:
            begun = {"started_at": self.owner.taken_at}
            if runs:
                runs = (replace(runs[0], **begun), *runs[1:])
            else:
                now = replace(now, **begun)
        if self.owner is not None and self.owner.free_since is not None:
            job = replace(job, created_at=self.owner.free_since)
        if self.finished is None:
            return replace(job, runs=runs, now=now)
        before = self.finished.try_number - first
        last = runs[before] if len(runs) > before else now
        done = Run(last.started_at, self.finished.at, 0, "", "", last.stream, last.host)
        return replace(job, status="SUCCEEDED", status_reason="", asked_to_end=False, runs=(*runs[:before], done))
