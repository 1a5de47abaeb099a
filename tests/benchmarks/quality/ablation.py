"""What each setting of training gives: variants of a configuration, trained with several seeds, compared with the base.

    python -m tests.benchmarks.quality.ablation --reviews path/to/reviews.jsonl.gz [--seeds 3] [--only NAME,...]
    python -m tests.benchmarks.quality.ablation --reviews path/to/reviews.jsonl.gz --report NAME,...

The first form chooses: it measures on development rows, which are split off the training side, and no holdout row is
looked at. The second form reports: it trains the base and the named variants on the whole training side, and measures
on the holdout. A training that is done is not done again: its answers are in workspace/ablation, one file each. After
a change of code, delete them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from configs.load import config_hash
from tasks.contracts.references import HoldoutRule
from tasks.data.holdout import held_out
from tasks.data.rows import ROW_ID, group_columns, read_rows
from tasks.foundation.errors import ConfigError
from tests.benchmarks.quality.measured_rows import CONFIDENCE, MeasuredRows, compare, measured_rows
from tests.benchmarks.quality.training import DataSet, Trained, demo_data, resolved, review_data, train_over
from tests.benchmarks.quality.variants import BASE, VARIANTS

METRICS = ("recall@10", "ndcg@10", "auc", "macro_f1")
RESULTS = Path("workspace/ablation")


class Purpose(NamedTuple):
    """Which rows are measured: `name` for people and files; those of a second hash range, or the holdout itself."""

    name: str
    chooses: bool

    def share(self, holdout: float) -> float:
        """Return the share of rows that training leaves out, of the holdout's share.

        For choosing, as large a share of the training side is held out as of all rows. A row is held out if a hash is
        below the share, so these rows are those between the two shares.
        """
        return holdout + holdout * (1 - holdout) if self.chooses else holdout


CHOOSE, REPORT = Purpose("development", True), Purpose("holdout", False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing and print a table for each data set, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=Path, help="reviews as JSON lines; without it the demo's shop alone")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each variant")
    parser.add_argument("--only", type=_names, help="variants, separated by commas; the base is always there")
    parser.add_argument("--report", type=_names, help="measure these on the holdout, after they were chosen")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of all variants")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    purpose, names = (REPORT, asked.report) if asked.report is not None else (CHOOSE, asked.only or tuple(VARIANTS))
    names = tuple(dict.fromkeys((BASE, *names)))
    data_sets = [demo_data(), *([review_data(asked.reviews)] if asked.reviews else [])]
    try:
        for data in data_sets:  # what can't work is said before anything is trained
            for name in names:
                _overrides(data, name, purpose, 0, asked.settings)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    for data in data_sets:
        ablate(data, names, purpose, asked.seeds, asked.settings, asked.results)
    return 0


def ablate(
    data: DataSet, names: Sequence[str], purpose: Purpose, seeds: int, settings: Sequence[str], results: Path
) -> None:
    """Print a line as soon as all seeds of a variant are trained. The base comes first, without its equals."""
    base: list[MeasuredRows] = []
    own = resolved(data, _overrides(data, BASE, purpose, 0, settings))
    for name in names:
        if name != BASE and resolved(data, _overrides(data, name, purpose, 0, settings)) == own:
            continue
        trained = [
            _once(data, name, purpose, seed, settings, results / f"{data.name}-{purpose.name}") for seed in range(seeds)
        ]
        if not base:
            base = trained
            _print_head(data, purpose, base)
        cells = [_cell(metric, base, trained) for metric in METRICS]
        print(f"| {name} | {' | '.join(cells)} | {np.mean([each.seconds for each in trained]):.0f} |", flush=True)


def _once(data: DataSet, name: str, purpose: Purpose, seed: int, settings: Sequence[str], folder: Path) -> MeasuredRows:
    """Return the answers of one training, from its file if it is there and of the same configuration."""
    overrides = _overrides(data, name, purpose, seed, settings)
    wanted = config_hash(resolved(data, overrides))
    file = folder / f"{name.replace(' ', '-')}-{seed}.json"
    if file.exists() and (known := MeasuredRows.model_validate_json(file.read_bytes())).config_sha256 == wanted:
        return known
    with tempfile.TemporaryDirectory(prefix="millrace-ablation-") as scratch:
        trained = train_over(data, Path(scratch), overrides)
        rows = measured_rows(trained.results, _measured(trained, data, purpose, settings), wanted, trained.seconds)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(rows.to_json())
    unfinished.replace(file)
    return rows


def _overrides(data: DataSet, name: str, purpose: Purpose, seed: int, settings: Sequence[str]) -> tuple[str, ...]:
    """Return the settings of one training. Raises ConfigError: the variant is unknown, or a key or value is."""
    if name not in VARIANTS:
        raise ConfigError(f"no variant {name!r}; there are: {', '.join(VARIANTS)}")
    try:
        plain = resolved(data, tuple(settings))
        held = (f"evaluate.holdout_share={purpose.share(plain.evaluate.holdout_share)!r}", f"seed={plain.seed + seed}")
        resolved(data, (*settings, *held, *VARIANTS[name]))
    except ConfigError as error:
        raise ConfigError(f"variant {name!r} of the data {data.name}: {error}") from error
    return (*settings, *held, *VARIANTS[name])


def _measured(trained: Trained, data: DataSet, purpose: Purpose, settings: Sequence[str]) -> np.ndarray:
    """Return which rows of the results are measured, bool: those between the holdout and the training side, or all."""
    if not purpose.chooses:
        return np.ones(len(trained.results.row_id), dtype=bool)
    rule = HoldoutRule.of(resolved(data, tuple(settings)).evaluate)
    rows = pa.concat_tables(read_rows(trained.store, trained.rows, [*group_columns(rule.group)]))
    holdout = rows[ROW_ID].to_numpy()[held_out(rows, rule)]
    return ~np.isin(trained.results.row_id.astype(str), holdout.astype(str))


def _print_head(data: DataSet, purpose: Purpose, base: Sequence[MeasuredRows]) -> None:
    pairs, known = sum(base[0].pair), sum(each >= 0 for each in base[0].label_class)
    print(
        f"\n{data.name}: {pairs} {purpose.name} pairs, {known} with a class, {len(base)} seeds; differences to the "
        f"base with intervals of {CONFIDENCE:.0%}\n"
    )
    print("| variant | " + " | ".join(METRICS) + " | seconds |\n|---|" + "---:|" * (len(METRICS) + 1), flush=True)


def _cell(metric: str, base: Sequence[MeasuredRows], trained: Sequence[MeasuredRows]) -> str:
    found = compare(metric, base, trained)
    if found is None:
        return "-"
    if trained is base:
        return f"{found.value:.3f}"
    return f"{found.value:.3f}, {found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


if __name__ == "__main__":
    sys.exit(main())
