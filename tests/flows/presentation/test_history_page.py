"""The pipeline's history: what it sums up, what it puts first, and that it stays small with many runs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Canvas

from flows.presentation import html
from flows.presentation.history.page import MOST_ROWS, history_html, page
from flows.presentation.history.quality import quality
from flows.presentation.wording import share
from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role
from tasks.contracts.stages import Stage
from tasks.monitoring.history import History, read_history
from tasks.monitoring.ledger_report import ledger_of
from tasks.runs.releases import CURRENT, Pointer
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot
from tests.flows.presentation.conftest import Past
from tests.support.fakes.fake_runner import ingest_feed
from tests.support.measures.results import by_queries
from tests.support.pages.golden import Golden
from tests.support.pages.shown import Page
from tests.support.workspace.past import week, write_run

SOON = dt.datetime(2026, 3, 4, 12, tzinfo=dt.UTC)  # two days and a half after the end of the newest released week
ENDED = ("✓ Released as 5, serves", "✕ Rejected", "! Failed: CODE")
LATE = dt.datetime(2026, 4, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def soon(past: Past) -> Page:
    return Page(history_html(past.store, SOON))


def many(history: History, count: int) -> History:
    """The same released run again and again, a week later each time; as if read from a workspace."""
    run, release = history.runs[1], history.releases[1]
    runs, releases = [], []
    for number in range(count):
        span = release.span.model_copy(update={"name": week(number)})
        began = (dt.datetime(2026, 1, 5, 6, tzinfo=dt.UTC) + dt.timedelta(weeks=number)).isoformat()
        made = release.model_copy(update={"number": number + 1, "span": span, "created_at": began})
        asked = (run.invocations[0].model_copy(update={"began_at": began}),)
        assert run.judgement is not None
        assert run.judgement.forward is not None
        forward = run.judgement.forward.model_copy(update={"release": number, "span": span.name})
        judged = run.judgement.model_copy(update={"forward": forward})
        runs.append(
            altered(run, run_key=f"{number:016x}", span=span.name, release=made, invocations=asked, judgement=judged)
        )
        releases.append(made)
    return history._replace(runs=tuple(runs), releases=tuple(releases), current=releases[-1])


def altered(run: Run, **changes: object) -> Run:
    """A run with other facts than its records have."""
    other = Run(run.snapshot, run.run_key)
    for stage in Stage:
        vars(other.stage(stage))["result"] = run.stage(stage).result
    facts = {"plan": run.plan, "invocations": run.invocations, "attempts": run.attempts, "judgement": run.judgement}
    vars(other).update(facts | {"release": run.release} | changes)
    return other


def test_the_page_shows_the_sums_of_the_ledger(past: Past, soon: Page, golden: Golden) -> None:
    text = soon.text
    golden(soon.lines)
    assert "6 of 9" in text  # the cancelled run does not count, the lost one does
    summed = read_history(Snapshot(past.store)).totals
    assert f"${summed.cost:,.2f}" in text
    assert f"{summed.goodput:.1%}".replace("%", " %") in text


def with_recall(run: Run, value: float, **more: object) -> Run:
    """The run with another recall@10 on seen queries; on unseen ones it is 0.1 lower."""
    assert run.judgement is not None
    outcome = run.judgement.outcome
    outcome = outcome.model_copy(update={"by_queries": {Role.challenger: by_queries({"recall@10": value})}})
    return altered(run, judgement=run.judgement.model_copy(update={"outcome": outcome}), **more)


@pytest.mark.parametrize("runs", [3, 200])
def test_the_chart_of_recall_draws_the_intervals(past: Past, runs: int) -> None:
    history = many(read_history(Snapshot(past.store)), runs)
    history = history._replace(
        runs=tuple(
            with_recall(run, 0.875, span=run.span, run_key=run.run_key, release=run.release) for run in history.runs
        )
    )
    figures = {each.title: each for each in quality(history)}
    assert "newest release has 0.7750" in figures["recall@10, unseen queries"].caption
    figure = figures["recall@10, seen queries"]
    assert "newest release has 0.8750" in figure.caption
    assert "95 % intervals" in figure.caption
    canvas = Canvas()
    figure.draw(canvas)
    (drawn,) = canvas.axes[0].collections  # upright lines, or one band
    heights = [y for path in drawn.get_paths() for _, y in path.vertices]  # pyright: ignore
    assert (min(heights), max(heights)) == pytest.approx((0.855, 0.895), abs=1e-3)


def test_failures_runs_and_spans_have_rows(past: Past, soon: Page) -> None:
    assert soon.row("HOST")[1] == "2"  # one of them was tried again
    assert soon.row("HANG")[1] == "1"
    links = [link["href"] for link in soon.all("a") if link["href"].startswith("../runs/")]
    scores = sum(len(score.parts) for _, score in read_history(Snapshot(past.store)).forward)
    assert links[scores : scores + 10] == [f"../runs/{past.keys[number]}/report.html" for number in reversed(range(10))]
    runs = {row[0]: row[1:] for row in soon.rows if row[1] in ENDED}
    assert list(runs) == ["2026-W09", "2026-W06", "2026-W03"]
    assert runs["2026-W06"][-1] == "evaluate: KeyError: 'locale' <script>alert(1)</script>"
    (span,) = [row for row in soon.rows if row[0] == "2026-W09" and row[2] == "v1"]
    assert (span[1], span[-1][:10]) == ("✓ Released", "2026-03-02")


def test_the_ledger_has_its_phases_and_weeks(past: Past, soon: Page) -> None:
    ledger = ledger_of("w", read_history(Snapshot(past.store)))
    assert soon.row("lost")[2] == share(ledger.whole.seconds.lost / ledger.whole.seconds.paid)
    assert [row[0] for row in soon.rows if row[1:2] == ["0 of 1"]] == [
        week.week for week in reversed(ledger.weeks) if week.runs_over > week.runs_succeeded
    ]


def test_stale_vectors_come_first(past: Past, soon: Page) -> None:
    assert "2 d 12 h old" in soon.text
    assert "stale" not in soon.ids
    late = Page(history_html(past.store, LATE))
    assert "30 d old" in late.text
    assert "stale" in late.ids


def test_items_that_wait_too_long_come_first(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    write_run(store, 0)
    assert "✓ none waits" in Page(history_html(store, SOON)).text
    ingest_feed(store, "2026-03", at="2026-03-04T07:00:00+00:00")
    page = Page(history_html(store, SOON))
    assert "5 h 00 min" in page.text
    assert "items-wait" in page.ids


def test_a_rollback_is_shown(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for number in range(2):
        write_run(store, number)
    assert "rolled-back" not in Page(history_html(store, SOON)).ids
    store.write(CURRENT, Pointer(release=1).to_json())
    page = Page(history_html(store, SOON))
    assert "rolled-back" in page.ids
    assert "58 d 12 h" in page.text  # of the data in the release that serves


def test_every_metric_of_a_gate_has_a_figure(soon: Page) -> None:
    alts = [image["alt"] for image in soon.all("img")]
    ranking = [f"{metric}, {queries} queries" for metric in ("recall@10", "mrr@10") for queries in ("unseen", "seen")]
    for metric in (*ranking, "auc"):
        (alt,) = [alt for alt in alts if alt.startswith(f"{metric} on the holdout over 6 spans")]
        assert "1 of 6" in alt
    for title in ("Age of the newest released data", "Goodput", "Cost of each run", "Compiling", "Training speed"):
        assert any(alt.startswith(title) for alt in alts), title


@pytest.mark.parametrize("count", [1, 8, 365])
def test_the_page_stays_small_with_many_runs(past: Past, count: int) -> None:
    history = many(read_history(Snapshot(past.store)), count)
    data = html.render(page("w", history, dt.datetime.fromisoformat(history.runs[-1].began_at) + dt.timedelta(days=1)))
    found = Page(data)
    assert f"{count} run" in found.text
    links = [link["href"] for link in found.all("a")]
    listed = [link for link in links if link.startswith("../runs/0000") and link.endswith("report.html")]
    assert len(listed) == 3 * min(count, MOST_ROWS) + len([row for row in history.spans if row.run_key])
    assert (f"newest {MOST_ROWS} of 365" in found.text) is (count > MOST_ROWS)
    assert ("mean of about 6" in found.text) is (count == 365)
    assert len(data) < 1_000_000


def test_runs_without_prices_have_no_figure_of_costs(past: Past) -> None:
    history = read_history(Snapshot(past.store))
    runs = tuple(free(run) for run in history.runs)
    found = Page(html.render(page("w", history._replace(runs=runs), SOON)))
    assert "m7i.2xlarge, trn1.32xlarge" in found.text
    assert not any(image["alt"].startswith("Cost") for image in found.all("img"))


def free(run: Run) -> Run:
    return altered(run, attempts=tuple(one.model_copy(update={"price": None}) for one in run.attempts))


def test_a_damaged_release_is_named_and_left_out(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for number in range(2):
        write_run(store, number)
    store.write("releases/1.json", b"{}")
    text = Page(history_html(store, SOON)).text
    assert f"{store.uri}/releases/1.json is not readable" in text
    assert "Released as 2, serves" in text
