"""A model's folder is opened by those who read a workspace: whoever wrote it must not run code in their processes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.data.items import TEXT
from tasks.data.rows import QUERY
from tasks.foundation.errors import ConfigError
from tasks.worker.model import released_code
from tasks.worker.search.consumer import Consumer, Given, encode_apart

EVIL = "open({!r}, 'w').write('ran')\n"
FEATURES = {"numeric": {}, "categorical": {}, "query": [], "rows": {}}


def _crossed(folder: Path) -> None:
    """Write what a model with features has of code, and as little else as it takes to get at that."""
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / "features.json").write_text(json.dumps(FEATURES))
    _modules(folder, "released_modules.FeatureTransformer")
    for name in released_code.FILES:
        shutil.copyfile(released_code.installed_copy(name), folder / name)


def _modules(folder: Path, kind: str) -> None:
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))


def _open(folder: Path) -> None:
    Consumer(folder)


def _encode(folder: Path) -> None:
    encode_apart(Given(folder, pa.table({QUERY: ["lamp"]}), pa.table({TEXT: ["lamp"]})))


def _changed(folder: Path, evil: str) -> None:
    with (folder / "released_modules.py").open("a") as file:
        file.write(evil)


def _one_more(folder: Path, evil: str) -> None:
    (folder / "extra.py").write_text(evil)
    _modules(folder, "extra.Evil")


def _in_a_folder(folder: Path, evil: str) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "interaction.py").write_text(evil)


def _installed_elsewhere(folder: Path, evil: str) -> None:
    _modules(folder, "antigravity.Evil")


def _from_the_hub(folder: Path, evil: str) -> None:
    (folder / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "someone/else--evil.Evil"}}))


def _any_function(folder: Path, evil: str) -> None:
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps({"activation_function": "os.abort"}))


@pytest.mark.parametrize("opened", [_open, _encode])
@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (_changed, r"released_modules\.py is not"),
        (_one_more, r"extra\.py is not"),
        (_in_a_folder, r"1_Pooling/interaction\.py is not"),
        (_installed_elsewhere, r"modules\.json names antigravity\.Evil"),
        (_from_the_hub, r"config\.json has an auto_map"),
        (_any_function, r"2_Dense/config\.json names os\.abort"),
    ],
)
def test_code_that_is_not_this_installations_own_never_runs(
    tmp_path: Path, tamper: Callable[[Path, str], None], named: str, opened: Callable[[Path], None]
) -> None:
    folder, ran = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    _crossed(folder)
    tamper(folder, EVIL.format(str(ran)))
    with pytest.raises(ConfigError, match=rf"{folder}/{named}") as caught:
        opened(folder)
    assert "millrace run" in str(caught.value), "the way out"
    assert not ran.exists()


@pytest.mark.parametrize("opened", [_open, _encode])
def test_a_model_without_features_asks_to_trust_nothing(tmp_path: Path, opened: Callable[[Path], None]) -> None:
    folder, ran = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / "evil.py").write_text(EVIL.format(str(ran)))
    _modules(folder, "evil.Evil")
    with pytest.raises(Exception, match="not part of Sentence Transformers"):
        opened(folder)
    assert not ran.exists()
