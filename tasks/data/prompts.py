"""Prompts by the names that sentence-transformers knows them by: `query`, `document`, and `query:de` of one entity."""

from configs.schema.model import EntityPrompts, Prompts

QUERY, ITEM = "query", "document"
_MARK = ":"


def to_names(prompts: Prompts) -> dict[str, str]:
    """Return what an exported folder says."""
    return {QUERY: prompts.query, ITEM: prompts.item} | entity_names(prompts)


def entity_names(prompts: Prompts) -> dict[str, str]:
    """Return the prompts of single entities alone."""
    found = {}
    for name, each in prompts.by_entity.items():
        for kind, prompt in ((QUERY, each.query), (ITEM, each.item)):
            if prompt is not None:
                found[f"{kind}{_MARK}{name}"] = prompt
    return found


def entities_of(names: dict[str, str | None]) -> dict[str, EntityPrompts]:
    """Return the prompts of single entities that a folder names."""
    entities = sorted({name.partition(_MARK)[2] for name in names if name.startswith((QUERY + _MARK, ITEM + _MARK))})
    return {
        each: EntityPrompts(query=names.get(f"{QUERY}{_MARK}{each}"), item=names.get(f"{ITEM}{_MARK}{each}"))
        for each in entities
    }
