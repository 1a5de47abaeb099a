"""The classification head compared with what a user would fit to the same training rows, on the same other rows.

    python -m tests.benchmarks.quality.classification --reviews path/to/reviews.jsonl.gz

It trains over all spans, then fits logistic regressions with balanced classes: on words, on the vectors of MiniLM as
it is, and on those of the trained encoder. It does so once for each part of the rows, which is then held out.
Without --reviews it does so on the demo's shop alone. With --calibration it prints instead how far the probabilities
of each model of a lineage can be believed on its held-out rows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from sklearn.linear_model import LogisticRegression

from tasks.contracts.evaluation import Role
from tasks.contracts.references import HoldoutRule
from tasks.data.holdout import read_sides
from tasks.data.label_columns import label_classes, used_columns
from tasks.data.rows import ITEM, QUERY, ROW_ID
from tasks.preflight.encoder import pretrained_folder
from tasks.quality.intervals import Term, error_of
from tasks.quality.row_metrics import NAMED, classification_metrics
from tasks.quality.selection import Answers, measure
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import load_parts
from tasks.worker.training.holdout import encode_side
from tests.benchmarks.quality.classifiers import Rows, Vectors, majority, on_vectors, on_words
from tests.benchmarks.quality.folds import SETTINGS, folds
from tests.benchmarks.quality.training import (
    DataSet,
    Trained,
    demo_data,
    each_model,
    resolved,
    review_data,
    train_over,
)
from tests.benchmarks.theirs import BATCH_ROWS, FOLDER

METRICS = ("auc", "macro_f1")
THRESHOLD = 0.5  # of logistic regression with balanced classes; the head has a threshold of its own
CONFIDENCE = 0.95
HEAD = "Millrace's head"
UNLIKELY = 0.01  # a probability that must seldom be wrong
RESOLUTION = 1e-7  # of float32 probabilities


class Says(NamedTuple):
    """What one way to classify says of each row: float64 (rows,) probabilities of class 1, and the class it names."""

    probabilities: np.ndarray
    predicted: np.ndarray


class Part(NamedTuple):
    """The rows of one part, which a training held out, and what each way to classify says of them, by its name."""

    trained_rows: int
    queries: np.ndarray  # int64 (rows,): equal for rows with one query
    items: np.ndarray  # object (rows,): str
    classes: np.ndarray  # int64 (rows,): 0 or 1
    says: dict[str, Says]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, fit and print a table for each data set, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=Path, help="reviews as JSON lines; without it the demo's shop alone")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of the training")
    parser.add_argument("--calibration", action="store_true", help="print the calibration of each model instead")
    asked = parser.parse_args(arguments)
    for data in [demo_data(), *([review_data(asked.reviews)] if asked.reviews else [])]:
        if asked.calibration:
            _print_calibration(data, tuple(asked.settings))
            continue
        settings = (*asked.settings, *SETTINGS)
        parts = []
        for each in folds(data, resolved(data, asked.settings).evaluate.holdout_share):
            with tempfile.TemporaryDirectory(prefix="millrace-classification-") as folder:
                parts.append(part_of(train_over(each, Path(folder), settings)))
            _print_table(f"{data.name}, part {len(parts)}", parts[-1:])
        _print_table(data.name, parts)


def part_of(trained: Trained) -> Part:
    """Return what the head of a training says of its holdout rows, and what others fitted to the same rows say."""
    head = trained.config.heads.classification
    assert head is not None
    pair = head.input == "pair"
    training, held = _tables(trained)
    results = trained.results
    known = np.flatnonzero((results.label_class >= 0) & ~results.golden)
    place = {row_id: number for number, row_id in enumerate(held[ROW_ID].to_pylist())}
    held = held.take([place[row_id] for row_id in results.row_id[known]])
    rows, test = (_with_class(table, trained) for table in (training, held))
    assert np.array_equal(test.classes, results.label_class[known])
    probabilities, predicted = (each[Role.challenger][known] for each in (results.probabilities, results.predicted))
    says = {
        HEAD: Says(probabilities.astype(np.float64), predicted.astype(np.float64)),
        "the majority": _fitted(majority(rows, test)),
        "words (TF-IDF), logistic regression": _fitted(on_words(rows, test, pair)),
    }
    for name, vectors in (
        ("MiniLM as it is, logistic regression", _frozen((rows, test), trained.config.infer.max_tokens)),
        ("the trained encoder, logistic regression", _of_trained(trained, (training, held))),
    ):
        says[name] = _fitted(on_vectors(vectors[0], rows.classes, vectors[1], pair))
    return Part(len(rows.classes), results.group[known], results.item_id[known], test.classes, says)


def _print_table(name: str, parts: Sequence[Part]) -> None:
    """Print how each way to classify judges: means over the parts, and how much better the head is, with intervals."""
    classes = np.concatenate([each.classes for each in parts])
    zeros, trained = int((classes == 0).sum()), np.mean([each.trained_rows for each in parts])
    print(
        f"\n{name}: {len(classes)} held out rows with a class, {zeros} of them negative "
        f"({zeros / len(classes):.1%}); {trained:,.0f} training rows; the head less the other, "
        f"{CONFIDENCE:.0%}\n\n| | AUC | head less it | macro F1 | head less it |\n|---|---:|---:|---:|---:|"
    )
    for other in parts[0].says:
        print(f"| {other} | {' | '.join(_cells(metric, parts, other) for metric in METRICS)} |", flush=True)


def _print_calibration(data: DataSet, settings: tuple[str, ...]) -> None:
    """Print a row for the model of each span: how far its probabilities can be believed on the holdout so far."""
    print(
        f"\n{data.name}\n\n| span | rows, calibrated on | slope | log loss (base rate) | calibration error | AUC | "
        f"macro F1 | said < {UNLIKELY:.0%}: of class 1 | recall@10 |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    with tempfile.TemporaryDirectory(prefix="millrace-calibration-") as folder:
        for trained in each_model(data, Path(folder), settings):
            results, solved = trained.results, load_parts(trained.store, trained.model.checkpoint).model.solved
            known = (results.label_class >= 0) & ~results.golden
            classes, says = results.label_class[known], results.probabilities[Role.challenger][known].astype(np.float64)
            found = classification_metrics(classes, says, results.predicted[Role.challenger][known])
            ranks = results.ranks[Role.challenger][results.pair & ~results.golden]
            share, unlikely = classes.mean(), says < UNLIKELY
            base = -(share * np.log(share) + (1 - share) * np.log(1 - share))
            print(
                f"| {trained.rows[-1].span.name} | {len(classes)}, {solved.calibration_rows if solved else 0} | "
                f"{calibration_slope(classes, says):.2f} | {found['log_loss']:.3f} ({base:.3f}) | "
                f"{found['calibration_error']:.3f} | {found['auc']:.3f} | {found['macro_f1']:.3f} | "
                f"{int(classes[unlikely].sum())} of {unlikely.sum()} | {(ranks <= 10).mean():.3f} |",
                flush=True,
            )


def calibration_slope(classes: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the slope of the classes' logistic regression on the log odds: 1 if calibrated, less if too sure.

    By Cox 1958.
    """
    said = np.clip(probabilities, RESOLUTION, 1 - RESOLUTION)
    odds = np.log(said / (1 - said))[:, None]
    return float(LogisticRegression(C=1e6).fit(odds, classes).coef_[0, 0])


def _fitted(probabilities: np.ndarray) -> Says:
    return Says(probabilities, (probabilities >= THRESHOLD).astype(np.float64))


def _tables(trained: Trained) -> tuple[pa.Table, pa.Table]:
    """Return the training rows that have a class, and all rows that are held out."""
    rule = HoldoutRule.of(trained.config.evaluate)
    sides = list(read_sides(trained.store, trained.rows, rule, used_columns(trained.config)))
    training, held = (
        pa.concat_tables([getattr(each, name) for each in sides], promote_options="permissive")
        for name in ("training", "held")
    )
    return training.filter(pa.array(label_classes(training, trained.config.heads) >= 0)), held


def _with_class(table: pa.Table, trained: Trained) -> Rows:
    return Rows(table[QUERY].to_pylist(), table[ITEM].to_pylist(), label_classes(table, trained.config.heads))


def _frozen(sets: Sequence[Rows], max_tokens: int) -> list[Vectors]:
    """Return the vectors of each set of rows by MiniLM as it is, which sees as much of a text as the trained model."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(pretrained_folder(FOLDER)), device="cpu")
    model.max_seq_length = max_tokens

    def encode(texts: list[str]) -> np.ndarray:
        vectors = model.encode(texts, batch_size=BATCH_ROWS, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors)

    return [Vectors(encode(rows.queries), encode(rows.items)) for rows in sets]


def _of_trained(trained: Trained, tables: Sequence[pa.Table]) -> list[Vectors]:
    """Return the vectors of each table's rows by the trained model, with their features."""
    config, parts = trained.config, load_parts(trained.store, trained.model.checkpoint)
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        settings = embed_settings(config, accelerator, config.infer.precision)

        def encode(table: pa.Table, side: Literal["query", "item"]) -> np.ndarray:
            return embed(parts.model, accelerator, *encode_side(table, side, parts, config), settings)

        return [Vectors(encode(table, QUERY), encode(table, ITEM)) for table in tables]


def _cells(metric: str, parts: Sequence[Part], other: str) -> str:
    """Return a metric of the other, and that of the head less it with an interval, as two cells.

    Both are means over the parts. Probabilities of two trainings are not compared with each other.
    """
    answers = [_answers(metric, each, other) for each in parts]
    ours, theirs = np.mean([measure(each) for each in answers], axis=0)
    if other == HEAD:
        return f"{theirs:.3f} | "
    weight = 1 / len(answers)
    error = error_of(*(Term(each, (weight, -weight)) for each in answers))
    low, high = error.bounds(ours - theirs, (1 + CONFIDENCE) / 2)
    return f"{theirs:.3f} | {ours - theirs:+.3f} ({low:+.3f} to {high:+.3f})"


def _answers(metric: str, part: Part, other: str) -> Answers:
    both = (each.predicted if metric in NAMED else each.probabilities for each in (part.says[HEAD], part.says[other]))
    return Answers(metric, part.queries, part.items, part.classes, tuple(both))


if __name__ == "__main__":
    main()
