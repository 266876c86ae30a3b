"""The text bundle, which the engine process writes for the web workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf_files import TOKENS, make_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.resolve import resolve_model
from lmi_handlers.text.bundle import (
    TextBundle,
    build_byte_bundle,
    build_text_bundle,
    check_sampling_defaults,
    load_text_bundle,
)
from lmi_handlers.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def auto_tokenizer() -> Any:
    import transformers

    folder = resolve_model(
        None, model_dir=None, revision=None, cache_dir=default_cache_dir(os.environ), report=lambda phase: None
    )
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model_dir(auto_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a real tokenizer and the configuration files of an invented model."""
    directory = tmp_path_factory.mktemp("model")
    auto_tokenizer.save_pretrained(directory)
    (directory / "config.json").write_text(
        json.dumps({"eos_token_id": 2, "text_config": {"vocab_size": 50_000, "max_position_embeddings": 8192}})
    )
    (directory / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [0, 2], "temperature": 0.6, "do_sample": True, "top_k": None, "pad_token_id": 2})
    )
    return directory


@pytest.fixture(scope="module")
def bundle_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("work") / "bundle"
    assert build_text_bundle(model_dir, directory) == load_text_bundle(directory)
    return directory


@pytest.fixture
def plain_model_dir(tmp_path: Path) -> Path:
    """A model folder with a tiny tokenizer that was saved with padding and truncation enabled."""
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "</s>": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["[UNK]", "</s>"])
    backend.enable_padding(length=8, pad_token="[UNK]")
    backend.enable_truncation(max_length=3)
    directory = tmp_path / "model"
    directory.mkdir()
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "model_max_length": 77})
    )
    return directory


@pytest.mark.model
def test_the_bundle_has_the_settings_of_the_model(bundle_dir: Path) -> None:
    bundle = load_text_bundle(bundle_dir)
    assert bundle.vocab_size == 50_000
    assert bundle.eos_token_ids == (0, 2)
    assert bundle.model_max_length == 8192
    assert bundle.sampling_defaults == {"temperature": 0.6}
    assert bundle.special_tokens["eos_token"] == "<|im_end|>"
    assert bundle.special_token_ids == tuple(range(17))
    assert bundle.chat_template is not None
    assert "<|im_start|>" in bundle.chat_template


def test_a_gguf_file_contains_the_tokenizer_and_its_template(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf")
    bundle = build_text_bundle(tmp_path, tmp_path / "bundle", gguf_file=file.name)
    assert bundle.eos_token_ids == (2,)
    assert bundle.special_tokens["eos_token"] == "</s>"
    assert bundle.chat_templates == {"default": "{{ messages[0].content }}"}
    assert Tokenizer(tmp_path / "bundle", bundle).encode("ab", add_special_tokens=False) == [TOKENS.index("ab")]


@pytest.fixture(scope="module")
def tokenizer(bundle_dir: Path) -> Tokenizer:
    return Tokenizer(bundle_dir, load_text_bundle(bundle_dir))


@pytest.mark.model
@settings(deadline=None)
@given(
    text=st.text(max_size=80) | st.lists(st.sampled_from(["<|im_start|>", "user", "\n", " don't", "1234"])).map("".join)
)
def test_text_is_tokenised_as_by_auto_tokenizer(auto_tokenizer: Any, tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text) == auto_tokenizer(text).input_ids
    assert tokenizer.encode(text, add_special_tokens=False) == auto_tokenizer.encode(text, add_special_tokens=False)


def test_padding_and_truncation_settings_from_training_are_ignored(plain_model_dir: Path, tmp_path: Path) -> None:
    bundle = build_text_bundle(plain_model_dir, tmp_path / "bundle")
    assert Tokenizer(tmp_path / "bundle", bundle).encode("a a a a a") == [1] * 5
    assert (bundle.vocab_size, bundle.model_max_length, bundle.eos_token_ids) == (3, 77, (2,))
    assert bundle.chat_template is None


def test_the_chat_template_option_replaces_the_models_own(plain_model_dir: Path, tmp_path: Path) -> None:
    bundle = build_text_bundle(plain_model_dir, tmp_path / "bundle", chat_template="{{ messages }}")
    assert bundle.chat_template == "{{ messages }}"


def test_named_chat_templates_are_kept(plain_model_dir: Path, tmp_path: Path) -> None:
    config = plain_model_dir / "tokenizer_config.json"
    templates = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": templates}))
    bundle = build_text_bundle(plain_model_dir, tmp_path / "bundle")
    assert bundle.chat_templates == {"default": "D", "tool_use": "T"}
    assert bundle.chat_template == "D"


@pytest.mark.parametrize("broken", ["config.json", "generation_config.json", "tokenizer.json"])
def test_an_unreadable_file_in_the_model_folder_is_a_configuration_error(
    plain_model_dir: Path, tmp_path: Path, broken: str
) -> None:
    (plain_model_dir / broken).write_text("{")
    with pytest.raises(ConfigError, match="model"):
        build_text_bundle(plain_model_dir, tmp_path / "bundle")


@pytest.mark.parametrize("content", [b'{"x": "\xff"}', b'{"x": ' + b"[" * 100_000, b"[1]", b'{"top_k": "many"}', b""])
def test_sampling_defaults_that_no_request_could_have(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        check_sampling_defaults(tmp_path)


@pytest.mark.parametrize("files", [{}, {"config.json": "{}", "tokenizer.json": "{}"}], ids=["nothing", "broken"])
def test_a_folder_without_a_tokenizer_is_a_configuration_error(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="no tokenizer can be loaded"):
        build_text_bundle(tmp_path, tmp_path / "bundle")


def test_a_missing_or_broken_bundle_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no text bundle"):
        load_text_bundle(tmp_path)
    (tmp_path / "bundle.json").write_text('{"vocab_size": "many"}')
    with pytest.raises(ConfigError, match="vocab_size"):
        load_text_bundle(tmp_path)


def test_the_byte_bundle_encodes_text_as_its_bytes(tmp_path: Path) -> None:
    bundle = build_byte_bundle(tmp_path)
    assert bundle == load_text_bundle(tmp_path)
    assert (bundle.vocab_size, bundle.eos_token_ids, bundle.special_token_ids) == (257, (256,), (256,))
    tokenizer = Tokenizer(tmp_path, bundle)
    assert tokenizer.encode("é\0<|endoftext|>") == [0xC3, 0xA9, 0, 256]
    assert [tokenizer.backend.id_to_token(byte) for byte in (0, 0x20, 0x7F, 0xAD)] == ["Ā", "Ġ", "ġ", "Ń"]


WORKER = """
import sys
from pathlib import Path
import lmi_handlers.text.chat_template, lmi_handlers.text.sequence
assert "transformers" not in sys.modules
from lmi_handlers.core.request import ChatPrompt
from lmi_handlers.text.bundle import load_text_bundle
from lmi_handlers.text.tokenizer import Tokenizer
bundle = load_text_bundle(Path(sys.argv[1]))
chat = ChatPrompt(messages=[{"role": "user", "content": "hello"}])
prompt = lmi_handlers.text.chat_template.render_chat(bundle, chat)
assert prompt == "user: hello\\nassistant: ", prompt
assert Tokenizer(Path(sys.argv[1]), bundle).encode(prompt) == list(prompt.encode())
print(sorted({"torch", "vllm", "tensorflow", "jax"} & sys.modules.keys()))
"""


def test_the_text_layer_imports_no_engine_library(tmp_path: Path) -> None:
    build_byte_bundle(tmp_path)
    worker = subprocess.run([sys.executable, "-c", WORKER, str(tmp_path)], capture_output=True, text=True, check=False)
    assert worker.returncode == 0, worker.stderr
    assert worker.stdout == "[]\n"


def test_bundles_compare_by_value() -> None:
    first, second = (TextBundle(vocab_size=1, eos_token_ids=(0,), special_token_ids=()) for _ in range(2))
    assert first == second
    assert first.chat_templates is not second.chat_templates
