"""Numbers with the noun that they count, in texts for people."""


def plural(how_many: int, what: str, several: str = "") -> str:
    """Format a number with a noun, as in `1 shard` and `2,000 shards`; `several` is a plural without a plain s."""
    return f"{how_many:,} {what if how_many == 1 else several or f'{what}s'}"
