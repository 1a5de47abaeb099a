"""The results of each row by every measured model, from evaluate's file, so that metrics can be computed again."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store
from tasks.contracts.evaluation import (
    COLUMN,
    COMPETITORS,
    GOLDEN,
    GROUP,
    ITEM_ID,
    LABEL,
    LABEL_CLASS,
    PAIR,
    QUERY_TRAINED,
    ROW_ID,
    SPAN,
    UNSEEN,
    WHOLE_COMPETITORS,
    Role,
    held_of,
    loss_of,
    predicted_of,
    probability_of,
    rank_of,
    says_of,
    shared_competitors_of,
    shared_rank_of,
    whole_rank_of,
)
from tasks.foundation.errors import StoreError
from tasks.quality.label_metrics import label_metrics
from tasks.quality.row_metrics import metrics_of

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

NO_VALUE = "(none)"  # stands for a missing value of a column


@dataclass(frozen=True)
class RowResults:
    """Arrays with one entry for each row. Rows of the golden set have the span GOLDEN.

    `columns` has texts, NO_VALUE for null. Each measured role is in `ranks`; it is in `losses` if the configuration has
    a contrastive head, and in `probabilities` and `predicted` if its model classifies. `labels` and `says` have the
    labels and predictions of label heads.
    """

    row_id: np.ndarray  # object: str
    span: np.ndarray  # object: str
    group: np.ndarray  # int64: equal for rows of one user, else of one query
    item_id: np.ndarray  # object: str
    unseen: np.ndarray  # bool: all rows of the query are held out
    query_trained: np.ndarray  # bool: the query occurs in a training row
    pair: np.ndarray  # bool
    label_class: np.ndarray  # int8
    columns: dict[str, np.ndarray]  # name in the source -> object: str
    ranks: dict[Role, np.ndarray]  # int32, from 1
    competitors: np.ndarray  # int32: items of the corpus that the own item is ranked among, without itself
    losses: dict[Role, np.ndarray]  # float32, nats
    probabilities: dict[Role, np.ndarray]  # float32
    predicted: dict[Role, np.ndarray]  # int8: predicted class
    labels: dict[str, np.ndarray] = field(default_factory=dict)  # by head, float64; NaN: not known
    says: dict[str, dict[Role, np.ndarray]] = field(default_factory=dict)  # by head, float32
    narrow_ranks: dict[int, dict[Role, np.ndarray]] = field(default_factory=dict)  # width -> int32, from 1
    whole_ranks: np.ndarray | None = None  # int32, the challenger's in the whole catalogue, if the corpus is a part
    whole_competitors: np.ndarray | None = None  # int32, as `competitors`, in the whole catalogue
    shared_ranks: dict[Role, dict[Role, np.ndarray]] = field(default_factory=dict)  # baseline -> int32 of both
    shared_competitors: dict[Role, np.ndarray] = field(default_factory=dict)  # baseline -> int32
    held: np.ndarray | None = None  # bool: the champion's release holds the row's item; None: release not readable

    @property
    def roles(self) -> tuple[Role, ...]:
        """The models that were measured."""
        return tuple(self.ranks)

    @property
    def golden(self) -> np.ndarray:
        """A mask of the golden set's rows, bool (rows,); the others are the holdout."""
        return self.span == GOLDEN

    def ranks_against(self, role: Role, baseline: Role | None) -> np.ndarray:
        """Return a role's ranks for a comparison with a baseline, int32 (rows,); None: no comparison.

        The ranks are among the items that both hold, or among the whole catalogue, if these were measured.

        Raises:
            KeyError: the role was not measured.
        """
        if baseline is not None and baseline in self.shared_ranks:
            return self.shared_ranks[baseline][role]
        if baseline is None and role is Role.challenger and self.whole_ranks is not None:
            return self.whole_ranks
        return self.ranks[role]

    def competitors_against(self, role: Role, baseline: Role | None) -> np.ndarray:
        """Return the number of items that `ranks_against` ranks the own item among, without itself, int32 (rows,)."""
        if baseline is not None and baseline in self.shared_competitors:
            return self.shared_competitors[baseline]
        if baseline is None and role is Role.challenger and self.whole_competitors is not None:
            return self.whole_competitors
        return self.competitors

    def without_shared(self, baseline: Role) -> "RowResults":
        """Return the results with the baseline's ranks in the common corpus alone."""
        ranks = {role: each for role, each in self.shared_ranks.items() if role is not baseline}
        competitors = {role: each for role, each in self.shared_competitors.items() if role is not baseline}
        return replace(self, shared_ranks=ranks, shared_competitors=competitors)

    def compared(self, role: Role, among: np.ndarray | None = None) -> dict[str, float]:
        """Return the metrics of challenger or champion as `metrics` does, but among the items that both hold."""
        baseline = Role.champion if Role.champion in self.ranks else None
        ranks, competitors = self.ranks_against(role, baseline), self.competitors_against(role, baseline)
        return self._metrics(role, among, ranks, competitors)

    def metrics(self, role: Role, among: np.ndarray | None = None) -> dict[str, float]:
        """Return a model's metrics over the holdout, or over the rows of the mask `among`, in the common corpus.

        A ranking metric at k is over the rows with k competitors; without such a row it is absent.

        Raises:
            KeyError: the role was not measured.
        """
        return self._metrics(role, among, self.ranks[role], self.competitors)

    def _metrics(
        self, role: Role, among: np.ndarray | None, ranks: np.ndarray, competitors: np.ndarray
    ) -> dict[str, float]:
        rows = ~self.golden if among is None else among
        losses, probabilities, predicted = (
            each.get(role) for each in (self.losses, self.probabilities, self.predicted)
        )
        found = metrics_of(
            ranks=ranks[rows],
            competitors=competitors[rows],
            loss_competitors=self.competitors[rows],
            losses=None if losses is None else losses[rows],
            pair=self.pair[rows],
            label_class=self.label_class[rows],
            probabilities=None if probabilities is None else probabilities[rows],
            predicted=None if predicted is None else predicted[rows],
        )
        for head, says in self.says.items():
            if role in says:
                found |= label_metrics(head, self.labels[head][rows], says[role][rows])
        return found


def read_row_results(store: Store, key: str) -> RowResults:
    """Return the row results under `key`: `EvaluateOutcome.rows_key` or `TrainOutcome.answers_key`.

    Raises:
        StoreError: the file is gone, damaged, or lacks a column; names the file and the remedy.
    """
    table = read_answers(store, key)
    try:
        return row_results(table)
    except KeyError as error:
        raise _unreadable(store, key, error) from error


def read_answers(store: Store, key: str) -> pa.Table:
    """Return the same as a table. Raises StoreError: the file is gone or damaged; names it and the remedy."""
    try:
        return pq.read_table(store.local(key))
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(store, key, error) from error


def _unreadable(store: Store, key: str, error: Exception) -> StoreError:
    return StoreError(
        f"{store.uri}/{key}, the answers to single rows, can't be read: {error}; restore it, or delete the result.json "
        "of its stage and run that again"
    )


def row_results(table: pa.Table) -> RowResults:
    """Return the row results of a table with the file's columns. Raises KeyError: a column is missing."""
    there = set(table.column_names)
    heads = [name.removeprefix(LABEL) for name in table.column_names if name.startswith(LABEL)]
    return RowResults(
        row_id=_texts(table[ROW_ID]),
        span=_texts(table[SPAN]),
        group=table[GROUP].to_numpy(),
        item_id=_texts(table[ITEM_ID]),
        unseen=table[UNSEEN].to_numpy(),
        query_trained=table[QUERY_TRAINED].to_numpy() if QUERY_TRAINED in there else np.zeros(len(table), dtype=bool),
        pair=table[PAIR].to_numpy(),
        label_class=table[LABEL_CLASS].to_numpy(),
        columns={name.removeprefix(COLUMN): _texts(table[name])
                 for name in table.column_names if name.startswith(COLUMN)},
        ranks={role: table[rank_of(role)].to_numpy() for role in Role if rank_of(role) in there},
        competitors=table[COMPETITORS].to_numpy(),
        held=table[held_of(Role.champion)].to_numpy() if held_of(Role.champion) in there else None,
        losses={role: table[loss_of(role)].to_numpy() for role in Role if loss_of(role) in there},
        probabilities={role: table[probability_of(role)].to_numpy() for role in Role if probability_of(role) in there},
        predicted={role: table[predicted_of(role)].to_numpy() for role in Role if predicted_of(role) in there},
        labels={head: table[f"{LABEL}{head}"].to_numpy() for head in heads},
        says={
            head: {role: table[says_of(role, head)].to_numpy() for role in Role if says_of(role, head) in there}
            for head in heads
        },
        narrow_ranks=_narrow_ranks(table),
        whole_ranks=table[whole].to_numpy() if (whole := whole_rank_of(Role.challenger)) in there else None,
        whole_competitors=table[WHOLE_COMPETITORS].to_numpy() if WHOLE_COMPETITORS in there else None,
        shared_competitors={
            baseline: table[name].to_numpy() for baseline in Role if (name := shared_competitors_of(baseline)) in there
        },
        shared_ranks={
            baseline: {role: table[shared_rank_of(role, baseline)].to_numpy() for role in (Role.challenger, baseline)}
            for baseline in Role if shared_rank_of(baseline, baseline) in there
        },
    )  # fmt: skip


def _narrow_ranks(table: pa.Table) -> dict[int, dict[Role, np.ndarray]]:
    found: dict[int, dict[Role, np.ndarray]] = {}
    for role in Role:
        for name in table.column_names:
            before, _, width = name.rpartition(".")
            if before == rank_of(role):  # as `narrow_rank_of` makes it
                found.setdefault(int(width), {})[role] = table[name].to_numpy()
    return found


def _texts(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column as texts, object (rows,); rows with an equal value share one object."""
    encoded = pc.fill_null(column.cast(pa.string()), NO_VALUE).combine_chunks().dictionary_encode()
    values = np.array(encoded.dictionary.to_pylist(), dtype=object)
    return values[encoded.indices.to_numpy()]
