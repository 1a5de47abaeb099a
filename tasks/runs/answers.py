"""A person's answer about a model that undecided gates ask about, in the judgement of its run."""

import datetime as dt

from infra.store.base import Store
from tasks.contracts.evaluation import Decision, DecisionAnswer, Question
from tasks.contracts.runs import RunPlan
from tasks.foundation.clock import now
from tasks.runs.results import Judgement, change_judgement

NOBODY = "nobody"  # in place of a name: the answer after the time was over


def ask(store: Store, plan: RunPlan, judged: Judgement, hours: float, flow_run: str, page: str) -> Judgement:
    """Record that a flow run asks, and until when; a second flow run that asks has the time of the first.

    Raises:
        StoreError: the judgement is not readable.
    """
    at = now()
    until = (dt.datetime.fromisoformat(at) + dt.timedelta(hours=hours)).isoformat(timespec="seconds")

    def asked(there: Judgement | None) -> Judgement:
        there = there or judged
        first = there.asked.at if there.asked else at, there.asked.until if there.asked else until
        question = Question(at=first[0], until=first[1], flow_run=flow_run, page=page)
        return there.model_copy(update={"asked": question})

    return change_judgement(store, plan.run_key, asked) or judged


def overdue(question: Question) -> bool:
    """Return True if the time for an answer is over."""
    return dt.datetime.fromisoformat(now()) >= dt.datetime.fromisoformat(question.until)


def decide(store: Store, plan: RunPlan, judged: Judgement, answer: DecisionAnswer, name: str, reason: str) -> Judgement:
    """Record an answer, unless there is one already: the first counts.

    Raises:
        StoreError: the judgement is not readable.
    """
    decision = Decision(answer=answer, name=name.strip(), reason=reason.strip(), at=now(), about=judged.asks)

    def decided(there: Judgement | None) -> Judgement:
        there = there or judged
        return there.model_copy(update={"decision": decision}) if there.asks else there

    return change_judgement(store, plan.run_key, decided) or judged
