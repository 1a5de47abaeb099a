"""The page of release: what was released, how to load it, and how to go back."""

from __future__ import annotations

import shlex

from flows.pages.account import foot, head
from flows.pages.markdown import code, commands, table
from infra.store import Store
from tasks import releases
from tasks.contracts import Release, RunPlan, Stage


def page(store: Store, plan: RunPlan, value: Release) -> str:
    """Markdown. Raises StoreError if the ledger, or the pointer to the current release, is not readable."""
    serving = releases.current(store)
    current = serving is not None and serving.number == value.number
    sentence = (
        "It is the current release: whoever reads releases/CURRENT gets this model and these vectors."
        if current
        else f"Release {serving.number if serving else '(none)'} is current, which was made or gone back to later."
    )
    lines = head(plan, f"Release {value.number}", sentence)
    lines += table(
        ("", "value"),
        [
            ("release", str(value.number)),
            ("model", code(value.model.version)),
            ("vectors", f"{value.vectors:,}"),
            ("previous release", "none" if value.previous is None else str(value.previous)),
            ("made at", value.created_at[:19].replace("T", " ") + " UTC"),
            *((name, f"{number:.4f}") for name, number in value.metrics.items()),
        ],
    )
    lines += ["## Load it", "", *_loading(plan, value), *_rollback(plan, value)]
    places = {
        "release": f"releases/{value.number}.json",
        "model": value.model_prefix,
        "vectors": value.vectors_prefix,
    }
    return "\n".join([*lines, *foot(store, plan, Stage.release, places)])


def _loading(plan: RunPlan, value: Release) -> list[str]:
    """The commands for this very model; one with feature interaction carries modules of its own."""
    folder, lines = f"{plan.workspace}/{value.model_prefix}", []
    if "://" in plan.workspace:
        local = value.model.version
        lines = commands(f"aws s3 cp --recursive {shlex.quote(folder)} {shlex.quote(local)}")
        folder = local
    argument = "" if plan.config.model.interaction.kind == "none" else ", trust_remote_code=True"
    return [
        *lines,
        *commands(
            "from sentence_transformers import SentenceTransformer",
            "",
            f"folder = {folder!r}",
            f"model = SentenceTransformer(folder{argument})",
        ),
    ]


def _rollback(plan: RunPlan, value: Release) -> list[str]:
    """Model and vectors go back together; the first release has nothing to go back to."""
    if value.previous is None:
        return []
    to = f"millrace rollback --to {value.previous} --workspace {shlex.quote(plan.workspace)}"
    again = f"millrace rollback --to {value.number} --workspace {shlex.quote(plan.workspace)}"
    return [
        "## Go back",
        "",
        f"Back to release {value.previous}, model and vectors at once:",
        "",
        *commands(to),
        f"And to release {value.number} again:",
        "",
        *commands(again),
    ]
