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


def _router(folder: Path, evil: str) -> None:
    """A class of the library itself that imports whatever its own settings name."""
    (folder / "9_R").mkdir()
    (folder / "evil.py").write_text(evil)
    types = {"types": {"m": f"{folder}--evil.Evil"}, "structure": {"query": ["m"], "document": ["m"]}, "parameters": {}}
    (folder / "9_R" / "router_config.json").write_text(json.dumps(types))
    kind = "sentence_transformers.base.modules.router.Router"
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "9_R", "type": kind}]))


def _library_class(folder: Path, evil: str) -> None:
    _modules(folder, "sentence_transformers.base.modules.router.Router")


def _another_folder(folder: Path, evil: str) -> None:
    first = {"idx": 0, "name": "0", "path": "", "type": "released_modules.FeatureTransformer"}
    second = {"idx": 1, "name": "1", "path": "../elsewhere", "type": "sentence_transformers.models.Pooling"}
    (folder / "modules.json").write_text(json.dumps([first, second]))


def _deeper(folder: Path, evil: str) -> None:
    nested = {"model_type": "bert", "text_config": {"auto_map": {"AutoConfig": "someone/else--evil.Evil"}}}
    (folder / "config.json").write_text(json.dumps(nested))


def _kernel(folder: Path, evil: str) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "_attn_implementation": "someone/kernel"}))


def _arguments(folder: Path, evil: str) -> None:
    (folder / "sentence_bert_config.json").write_text(json.dumps({"model_args": {"code_revision": "evil"}}))


def _adapter(folder: Path, evil: str) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"auto_mapping": {"parent_library": "antigravity"}}))


def _processor(folder: Path, evil: str) -> None:
    (folder / "preprocessor_config.json").write_text("{}")


def _pickle(folder: Path, evil: str) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"")


def _link(folder: Path, evil: str) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").symlink_to("/etc/hostname")


def _cut(folder: Path, evil: str) -> None:
    (folder / "config.json").write_text('{"model_type": "bert"')


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
        (_router, r"9_R/router_config\.json is not"),
        (_library_class, r"modules\.json names sentence_transformers\.base\.modules\.router\.Router"),
        (_another_folder, r"modules\.json has another entry 1"),
        (_deeper, r"config\.json has an auto_map"),
        (_kernel, r"config\.json names someone/kernel"),
        (_arguments, r"sentence_bert_config\.json has other keys"),
        (_adapter, r"adapter_config\.json is not"),
        (_processor, r"preprocessor_config\.json is not"),
        (_pickle, r"pytorch_model\.bin is not"),
        (_link, r"1_Pooling/config\.json is a link"),
        (_cut, r"config\.json is not readable"),
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


def test_a_model_without_features_is_checked_too_and_asks_to_trust_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    _modules(tmp_path, "sentence_transformers.models.Transformer")
    assert not released_code.needs_trust(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL.format("ran"))
    with pytest.raises(ConfigError, match=r"evil\.py is not this installation's own"):
        released_code.needs_trust(tmp_path)
