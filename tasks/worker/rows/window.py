"""Checks of a whole window: its bad rows, its size, its features, categories and tokens new to the parent."""

from collections.abc import Sequence
from typing import NamedTuple

from configs.schema.config import Config
from configs.schema.gates import Severity
from tasks.contracts.outcomes import Check
from tasks.contracts.references import SpanRef
from tasks.quality.limits import Limit
from tasks.worker.rows.counts import WindowCounts
from tasks.worker.rows.row_rules import ID_RULES, row_rules


class Measure(NamedTuple):
    """A figure of the whole window, and its limit."""

    value: float
    limit: Limit
    severity: Severity
    sentence: str


def row_checks(counts: WindowCounts, config: Config) -> list[Check]:
    """Return one check per group of row rules. A bad row is a warning; the share of bad rows has its own check."""
    groups: dict[str, list[str]] = {}
    for rule in (*row_rules(config), *ID_RULES):
        groups.setdefault(rule.check, []).append(rule.reason)
    checks = []
    for name, reasons in groups.items():
        bad = sum(counts.reasons[reason] for reason in reasons)
        share = bad / max(counts.rows_in, 1)
        found = ", ".join(f"{reason} in {counts.reasons[reason]}" for reason in reasons if counts.reasons[reason])
        checks.append(
            Check(
                name=name,
                passed=not counts.failed.intersection(reasons),
                severity="warning",
                observed=float(bad),
                sentence=f"{bad} of {counts.rows_in} rows are bad ({share:.2%})" + (f": {found}." if bad else "."),
            )
        )
    return checks


def window_checks(
    counts: WindowCounts, features: Sequence[str], last: SpanRef, config: Config, more: str = ""
) -> list[Check]:
    """Return the checks of row counts, of features, and of categories and tokens new to the parent.

    Args:
        more: an end of the sentence on the share of bad rows.
    """
    measures = {**_sizes(counts, last, config, more), **_features(counts, features), **_unseen(counts, config)}
    return [
        Check(
            name=name,
            passed=m.limit.admits(m.value),
            severity=m.severity,
            observed=round(float(m.value), 6),
            sentence=m.sentence,
        )
        for name, m in measures.items()
    ]


def _way_on(clean: int, last: SpanRef, config: Config) -> str:
    """Return advice for a window with too few rows; empty if it has enough."""
    limits = config.validate_
    if clean >= limits.min_rows:
        return ""
    merge = "set validate.small_spans=merge to train it together with the next span, " * (limits.small_spans == "stop")
    return (
        f" Add rows to {last.name}, {merge}lower validate.min_rows, or leave the span out: "
        f"millrace skip {last.name} --reason TEXT."
    )


def _sizes(counts: WindowCounts, last: SpanRef, config: Config, more: str) -> dict[str, Measure]:
    limits = config.validate_
    clean, total = counts.rows_clean, counts.rows_in
    share = (total - clean) / max(total, 1)
    return {
        "clean rows": Measure(clean, Limit(limits.min_rows, None), "critical",
            f"{clean} clean rows in the window; at least {limits.min_rows} are required."
            f"{_way_on(clean, last, config)}"),
        "rows in the last span": Measure(counts.clean[last], Limit(1, None), "critical",
            f"{counts.clean[last]} clean rows in span {last.name}, for which this run is; at least 1 is required."),
        "quarantined share": Measure(share, Limit(None, limits.max_bad_share), "critical",
            f"{total - clean} of {total} rows are bad ({share:.2%}); at most "
            f"{limits.max_bad_share:.2%} may be.{more}"),
    }  # fmt: skip


def _features(counts: WindowCounts, features: Sequence[str]) -> dict[str, Measure]:
    measures = {}
    for column in features:
        sentence = f"{counts.filled[column]} of {counts.rows_clean} clean rows have a {column}; at least 1 is required."
        measures[f"{column} filled"] = Measure(counts.filled[column], Limit(1, None), "warning", sentence)
    return measures


def _unseen(counts: WindowCounts, config: Config) -> dict[str, Measure]:
    """Return the window's shares of categories and tokens that the parent has never seen; empty without a parent."""
    limits = config.validate_
    measures = {}
    rows = sum(profile.rows for profile in counts.profiles)
    for feature in dict.fromkeys(name for profile in counts.profiles for name in profile.unseen):
        share = sum(profile.unseen.get(feature, 0.0) * profile.rows for profile in counts.profiles) / rows
        measures[f"{feature} unseen"] = Measure(
            share,
            Limit(None, limits.max_unseen_share),
            "warning",
            f"{share:.2%} of {rows} clean rows have a {feature} that the parent has never seen; at most "
            f"{limits.max_unseen_share:.2%} is expected.",
        )
    known = [
        (profile.unknown_tokens, profile.rows) for profile in counts.profiles if profile.unknown_tokens is not None
    ]
    if known:
        share = sum(tokens * each for tokens, each in known) / sum(each for _, each in known)
        measures["unknown tokens"] = Measure(
            share,
            Limit(None, limits.max_unknown_token_share),
            "warning",
            f"{share:.2%} of the tokens of a sample of texts are unknown to the parent's tokenizer; at most "
            f"{limits.max_unknown_token_share:.2%} is expected.",
        )
    return measures
