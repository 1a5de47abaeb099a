"""The README.md of an exported model: description, loading, and origin.

It contains only facts about the model version, so every release of the same model has the same card.
"""

from collections.abc import Mapping, Sequence

from configs.schema.model import Prompts
from tasks.contracts.evaluation import MAIN, ByQueries
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.references import HeadSolved, LabelHeadSolved
from tasks.contracts.workspace import MODEL
from tasks.data.pretrained import entity_names
from tasks.foundation.nouns import plural
from tasks.worker.export.export import label_scoring_code, scoring_code
from tasks.worker.training.checkpoint import ModelParts

NAME = "README.md"


def model_card(parts: ModelParts, longest: int, widths: Sequence[int], inputs: ReleaseInputs) -> str:
    """Return the card: Markdown with the metadata header of model hubs.

    Args:
        longest: tokens after which a text is cut.
        widths: trained Matryoshka widths below the full width.
        inputs: of the release that exports the model.
    """
    table, version = parts.features, inputs.model.version
    features = [*table.numeric, *table.categorical]
    loading = f'SentenceTransformer("models/{version}"{", trust_remote_code=True" if features else ""})'
    item = _example("a text of an item", features)
    query = _example("what a user types", [name for name in features if name in table.query])
    made = f"queries = model.encode_query([{query}])"
    if inputs.model.items is None:
        about, made = "An embedding model of queries and items", f"items = model.encode_document([{item}])\n{made}"
        where = "Search only vectors of this very version with it: `model_version` stands in each row of a release."
    else:
        about = "An embedding model of queries alone"
        where = (
            f"It was trained to find the vectors of `{inputs.model.items.version}`, which embeds the items: "
            "`model_version` in each row of a release. Search no others with it."
        )
    lines = [
        "---",
        "library_name: sentence-transformers",
        "pipeline_tag: sentence-similarity",
        "tags: [sentence-transformers, feature-extraction, millrace]",
        "---",
        "",
        f"# {version}",
        "",
        f"{about}: {parts.model.width} numbers of unit length, compared by cosine. "
        f"A text is cut after {longest} tokens.",
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        f"model = {loading}",
        made,
        "```",
        "",
        where,
        *_prompts(parts.model.shape.prompts),
        *_widths(widths),
    ]
    if features:
        with_queries = ", ".join(f"`{name}`" for name in features if name in table.query) or "none"
        lines += [
            "",
            "| feature | kind | known values |",
            "|---|---|---|",
            *(f"| {name} | number | mean {scale.mean:.4g}, deviation {scale.deviation:.4g} |"
              for name, scale in table.numeric.items()),
            *(f"| {name} | category | {len(values)} |" for name, values in table.categorical.items()),
            "",
            f"A missing or unknown value is allowed. Features of queries: {with_queries}; others are ignored there.",
        ]  # fmt: skip
    if parts.model.classifier is not None:
        lines += ["", *_scoring(parts, MODEL.key(version=version))]
    for name in parts.model.shape.label_heads:
        lines += ["", *_label_scoring(parts, name, MODEL.key(version=version))]
    if inputs.metrics:
        lines += ["", *_measured(inputs.metrics, inputs.by_queries)]
    for override in inputs.overrides:
        lines += ["", f"Gates refused this model, and {override.name} let it pass: {override.reason}", ""]
        lines += [f"- {refusal}" for refusal in override.refusals]
    if inputs.rows:
        lines += ["", "Trained on:", ""]
        lines += [
            f"- span {each.span.name}, version {each.span.version}: {plural(each.rows, 'row')}" for each in inputs.rows
        ]
    return "\n".join([*lines, ""])


def _measured(metrics: Mapping[str, float], apart: ByQueries | None) -> list[str]:
    """Return the table of the metrics on unseen, on seen, and on all held-out queries."""
    found = apart.parts if apart else {}
    names = [*(f"{name} queries" for name in found), "all held-out queries"]
    lines = [f"| metric | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for name, value in metrics.items():
        cells = [f"{part.metrics[name]:.4f}" if name in part.metrics else "" for part in found.values()]
        lines.append(f"| {name} | {' | '.join([*cells, f'{value:.4f}'])} |")
    if apart is None:
        return lines
    bounds = [
        f"{part.low:.4f} to {part.high:.4f} on {plural(part.rows, 'pair')} of {name} queries"
        for name, part in apart.parts.items()
        if part.low is not None and part.high is not None
    ]
    lines += ["", "No row of an unseen query was trained on; other rows of a seen one may have been."]
    return [*lines, f"95 % intervals of {MAIN}: {', '.join(bounds)}."] if bounds else lines


def _scoring(parts: ModelParts, folder: str) -> list[str]:
    """Return the section on the classification head."""
    seen = "a query and an item" if parts.model.shape.classifier == "pair" else "a query"
    lines = [f"The folder `classification` judges {seen}; its `config.json` says what the classes are.", ""]
    lines += ["```python", *scoring_code(parts.model, folder).splitlines(), "```"]
    if (solved := parts.model.solved) is not None:
        lines += ["", _solved(solved)]
    return lines


def _label_scoring(parts: ModelParts, name: str, folder: str) -> list[str]:
    """Return the section on a label head."""
    shape = parts.model.shape.label_heads[name]
    seen = "a query and an item" if shape.input == "pair" else "a query"
    meaning = ", ".join(f"{key} {value}" for key, value in shape.meaning.items())
    lines = [f"The folder `{name}` judges {seen}: {meaning}.", ""]
    lines += ["```python", *label_scoring_code(parts.model, name, folder).splitlines(), "```"]
    if (solved := parts.model.labels_solved.get(name)) is not None:
        lines += ["", _solved(solved)]
    return lines


def _solved(solved: HeadSolved | LabelHeadSolved) -> str:
    """Return a head's origin. Its metrics are the holdout's: the encoder has seen the rows that it was solved on."""
    calibrated = (
        f"and calibrated on {plural(solved.calibration_rows, 'row')} that no step was taken on"
        if solved.calibration_rows
        else "and not calibrated on rows that the encoder had not seen"
    )
    return f"It was solved on {solved.rows:,} training rows, {calibrated}."


def _prompts(prompts: Prompts) -> list[str]:
    if not prompts.any:
        return []
    sides = (("encode_query", prompts.query), ("encode_document", prompts.item))
    said = [f"`{name}` puts `{prompt}` before a text" for name, prompt in sides if prompt]
    lines = ["", f"Its prompts are part of the folder: {' and '.join(said) or 'none is common'}. "
             "Other libraries must do so themselves."]  # fmt: skip
    if prompts.by_entity:
        names = ", ".join(f"`{name}`" for name in entity_names(prompts))
        lines += ["", f"Texts about some things have prompts of their own, by name: {names}. Give it as `prompt_name`: "
                  '`model.encode_query(texts, prompt_name="query:NAME")`.']  # fmt: skip
    return lines


def _widths(widths: Sequence[int]) -> list[str]:
    if not widths:
        return []
    return [
        "",
        f"The first {', '.join(map(str, widths))} numbers of a vector were trained as vectors of their own: load the "
        f"model with `truncate_dim={widths[0]}`, and encode with `normalize_embeddings=True`, or normalise the first "
        "numbers of the released vectors.",
    ]


def _example(text: str, features: Sequence[str]) -> str:
    if not features:
        return f'"{text}"'
    return "{" + ", ".join([f'"text": "{text}"', *(f'"{name}": ...' for name in features)]) + "}"
