"""What a target's settings may be; above all that no password gets into a configuration, or into an error."""

import pytest

from configs.load import config_hash, load_config
from tasks.foundation.errors import ConfigError

PG = "publish.targets=[{{kind: pgvector, name: shop, dsn: '{}'}}]"


@pytest.mark.parametrize(
    "setting",
    [
        PG.format("postgresql://writer:geheim@db/shop"),
        PG.format("host=db user=writer password=geheim"),
        PG.format("host=db user=writer PASSWORD = geheim"),
        PG.format("postgresql://writer@db/shop?password=geheim"),
        "publish.targets=[{kind: qdrant, name: shop, url: 'https://key:geheim@db:6333'}]",
        "publish.targets=[{kind: pgvector, name: shop, dsn: 'host=db', password: geheim}]",
        PG.format("postgresql://writer@db/shop?%70assword=geheim"),
        "publish.targets=[{kind: qdrant, name: shop, url: 'https://db:6333?api_key=geheim'}]",
        "publish.targets=[{kind: lancedb, name: shop, uri: 'db://shop?api_key=geheim'}]",
    ],
)
def test_a_password_is_refused_and_not_repeated(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"publish\.targets\.0") as caught:
        load_config(overrides=[setting])
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "more", "message"),
    [
        ("[{kind: lancedb, name: a, uri: l}, {kind: lancedb, name: a, uri: m}]", (), "two targets are named a"),
        ("[{kind: lancedb, name: 'a; drop', uri: l}]", (), "targets.0.name"),
        ("[{kind: solr, name: a, uri: l}]", (), "lancedb, pgvector, qdrant"),
        ("[{kind: lancedb, name: a, uri: l}]", ("publish.compute=batch",), "target a of publish.targets is a folder"),
        ("[{kind: qdrant, name: a, url: q}]", ("compute=batch",), "target a of publish.targets is a folder"),
    ],
)
def test_settings_that_can_not_be_published_with_are_refused(targets: str, more: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[f"publish.targets={targets}", *more])
    assert message in str(caught.value)


def test_where_releases_are_published_is_no_part_of_the_work() -> None:
    plain = load_config()
    published = load_config(overrides=[PG.format("postgresql://writer@db/shop"), "publish.min_recall=0.8"])
    assert config_hash(published) == config_hash(plain)
    assert published.same_work_as(plain)
