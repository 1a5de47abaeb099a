"""The rows that two models have both answered, in one evaluation or in two."""

from typing import NamedTuple

import numpy as np

from infra.store.base import Store
from tasks.contracts.evaluation import Role
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.stages import Stage
from tasks.quality.answers import row_values
from tasks.quality.common_items import CommonItems
from tasks.quality.row_results import RowResults, read_row_results
from tasks.quality.selection import counting
from tasks.runs import catalogues
from tasks.runs.run import Run


class Evaluated(NamedTuple):
    """A run with the answers of each model that its evaluation measured."""

    label: str
    run: Run
    outcome: EvaluateOutcome
    rows: RowResults
    roles: dict[str, Role]  # by model version

    @property
    def version(self) -> str | None:
        return next((version for version, role in self.roles.items() if role is Role.challenger), None)

    @property
    def items(self) -> int:
        """The number of items that the challenger's ranks without a baseline are among."""
        return self.outcome.whole_items or self.outcome.corpus_items


class ComparedModel(NamedTuple):
    """One model's answers to the common rows."""

    rows: RowResults
    role: Role
    met: Role | None  # the model that it is compared with in the same file
    at: np.ndarray  # int64 (common rows,): their places in the file

    def values(self, metric: str) -> np.ndarray:
        """Return `Answers.values` of this model. Raises KeyError: it was not measured."""
        return row_values(self.rows, metric, self.role, self.met)[self.at]

    def counts(self, metric: str) -> np.ndarray:
        return counting(self.rows, metric, self.role, self.met)[self.at]

    def ranks(self) -> np.ndarray:
        return self.rows.ranks_against(self.role, self.met)[self.at]


def read_evaluated(store: Store, label: str, run: Run) -> Evaluated | None:
    """Return a run with its row results; None if it was not evaluated or kept no answers to single rows."""
    outcome = run.outcome(Stage.evaluate)
    if not isinstance(outcome, EvaluateOutcome) or outcome.rows_key is None:
        return None
    roles: dict[str, Role] = {}
    for each in outcome.measured:
        roles.setdefault(each.version, each.role)
    return Evaluated(label, run, outcome, read_row_results(store, outcome.rows_key), roles)


def common_rows(
    store: Store, a: Evaluated, b: Evaluated
) -> tuple[tuple[ComparedModel, ComparedModel], str | None, str, list[str]]:
    """Return both models' answers to the same rows, the run that measured both, the ranked items, and notes."""
    for base, other in ((b, a), (a, b)):
        role = base.roles.get(other.version or "")
        if role is None or role not in base.rows.ranks:
            continue
        at = np.flatnonzero(~base.rows.golden)
        met = None if role is Role.challenger else role
        rows, among, notes = _met_in(base, role)
        own, its = ComparedModel(rows, Role.challenger, met, at), ComparedModel(rows, role, met, at)
        if met is None:
            notes.append(f"{a.label} and {b.label} are the same model, {a.version}.")
        sides = (its, own) if base is b else (own, its)
        return sides, base.run.run_key, among, notes
    at_a, at_b = _common(a.rows, b.rows)
    sides = ComparedModel(a.rows, Role.challenger, None, at_a), ComparedModel(b.rows, Role.challenger, None, at_b)
    notes = []
    if not len(at_a):
        notes.append(
            f"{a.label} and {b.label} hold out no row in common: {_spans(a)} and {_spans(b)}. Their metrics are of "
            "other rows and can't be compared."
        )
    alike = catalogues.of_run(store, a.run.run_key) == catalogues.of_run(store, b.run.run_key)
    if alike and a.items == b.items:
        return sides, None, f"among {a.items:,} items", notes
    if len(at_a):
        notes.append(
            f"{a.label} ranks each row's item among {a.items:,} items, {b.label} among {b.items:,} of another "
            "catalogue, so ranking metrics differ by the catalogues too."
        )
    return sides, None, "each among the items of its own catalogue", notes


def _met_in(base: Evaluated, role: Role) -> tuple[RowResults, str, list[str]]:
    """Return the answers of a run that measured both models, the items that they are among, and notes.

    With too few common items, both are compared in the corpus of all models.
    """
    corpus = f"among {base.outcome.corpus_items:,} items"
    if role not in base.outcome.shared_items:
        return base.rows, corpus, []
    common = CommonItems(base.outcome.shared_items[role], base.outcome.catalogue_items)
    plan = base.run.plan
    if plan is None or not common.few(plan.config.evaluate.min_shared):
        return base.rows, common.words, []
    note = f"They are compared {corpus} that no model chose, since they have few in common: {common.words}."
    return base.rows.without_shared(role), corpus, [note]


def _spans(each: Evaluated) -> str:
    names = sorted(set(each.rows.span[~each.rows.golden]))
    between = f"{names[0]} to {names[-1]}" if len(names) > 1 else "".join(names) or "no span"
    return f"{held_out(each):,} rows of {between}"


def _common(a: RowResults, b: RowResults) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the holdout rows that both files have, int64 (common rows,) in each file."""
    keys = [zip(each.span, each.row_id, each.item_id, each.group.tolist(), strict=True) for each in (a, b)]
    there = {key: at for at, key in enumerate(keys[1]) if not b.golden[at]}
    pairs = [(at, there[key]) for at, key in enumerate(keys[0]) if not a.golden[at] and key in there]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def held_out(each: Evaluated | None) -> int:
    return int((~each.rows.golden).sum()) if each is not None else 0
