"""A model's folder is opened by those who read a workspace: whoever wrote it must not run code in their processes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder, read_manifest
from tasks.data.rows import QUERY, TEXT
from tasks.foundation.errors import ConfigError
from tasks.worker.model import released_code
from tasks.worker.search.consumer import Consumer, Given, encode_apart, open_released
from tests.support.fakes.fake_runner import commit_files
from tests.support.workspace.releases import write_release

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


def _tokenizer(folder: Path, evil: str) -> None:
    named = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def _trusting(folder: Path, evil: str) -> None:
    loaded = {"tokenizer_class": "BertTokenizer", "init": [{"trust_remote_code": True}]}
    (folder / "tokenizer_config.json").write_text(json.dumps(loaded))


def _template(folder: Path, evil: str) -> None:
    (folder / "chat_template.jinja").write_text("{{ cycler.__init__.__globals__.os.abort() }}")


def _processor_code(folder: Path, evil: str) -> None:
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "evil.Evil"}))


def _weights_of_others(folder: Path, evil: str) -> None:
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": "../../quarantine/pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _quantised(folder: Path, evil: str) -> None:
    nested = {"model_type": "bert", "text_config": {"quantization_config": {"quant_method": "antigravity"}}}
    (folder / "config.json").write_text(json.dumps(nested))


def _in_another_encoding(folder: Path, evil: str) -> None:
    (folder / "config.json").write_bytes(json.dumps({"model_type": "bert"}).encode("utf-16"))


def _very_deep(folder: Path, evil: str) -> None:
    """Deeper than Python's own recursion goes, and not than its reader of JSON does."""
    deep = '{"a":' * 900 + '{"auto_map": {"AutoConfig": "someone/else--evil.Evil"}}' + "}" * 900
    (folder / "config.json").write_text(deep)


def _pipe(folder: Path, evil: str) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def _another_case(folder: Path, evil: str) -> None:
    """On a disk that ignores case it would be the file that the library opens."""
    (folder / "CONFIG.json").write_text(json.dumps({"auto_map": {"AutoConfig": "someone/else--evil.Evil"}}))


def _one_place_twice(folder: Path, evil: str) -> None:
    """Two modules claim one place."""
    second = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]
    first = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps([*first, *second]))


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
        (_tokenizer, r"tokenizer_config\.json has an auto_map"),
        (_trusting, r"tokenizer_config\.json has an trust_remote_code"),
        (_template, r"chat_template\.jinja is not"),
        (_processor_code, r"processor_config\.json is not"),
        (_weights_of_others, r"model\.safetensors\.index\.json names files that are not"),
        (_quantised, r"config\.json has a quantization_config"),
        (_in_another_encoding, r"config\.json is not readable"),
        (_very_deep, r"config\.json (has an auto_map|is not readable)"),
        (_pipe, r"config\.json is not a file"),
        (_another_case, r"CONFIG\.json is not"),
        (_one_place_twice, r"modules\.json names evil\.Evil"),
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
    with pytest.raises(ConfigError, match=r"evil\.py is not"):
        released_code.needs_trust(tmp_path)


@pytest.mark.parametrize("changed", ["model", "vectors"])
def test_a_folder_that_was_changed_together_with_its_manifest_is_not_opened(tmp_path: Path, changed: str) -> None:
    store = DirectoryStore(tmp_path)
    release = write_release(store, 1)
    commit_files(store, release.model_prefix, {"modules.json": "[]"}, "model")
    named = {"model": release.model_prefix, "vectors": release.vectors_prefix}
    hashes = {f"{of}_sha256": read_manifest(store, prefix).sha256 for of, prefix in named.items()}
    ref = release.model_copy(update=hashes | {f"{changed}_sha256": "0" * 64}).ref
    with pytest.raises(CorruptFolder, match=rf"{named[changed]}/MANIFEST\.json"):
        open_released(store, ref)
