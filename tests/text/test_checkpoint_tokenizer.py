"""Tokenizers without a tokenizer.json: Mistral's own files, and Python code around tiktoken."""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from facts import raises
from paths import DATA

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.text.bundle import build_text_bundle
from lmi_handlers.text.tokenizer import Tokenizer

tiktoken: Any = None  # neither is installed where types are checked
sentencepiece: Any = None
with contextlib.suppress(ImportError):
    tiktoken = importlib.import_module("tiktoken")
    sentencepiece = importlib.import_module("sentencepiece")

pytestmark = [pytest.mark.needs("tiktoken"), pytest.mark.needs("sentencepiece")]
"""vLLM brings both, and mistral_common."""

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = (b"he", b"th", b"the", b" t", b" th", b" the", b"in", b"ing", b"an", b"and", b" a", b" an", b" and")
RANKS = {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *WORDS])}
SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>")
TEXT = f"{(DATA / 'alice.txt').read_text()[:5000]} 日本語 🎉 été 1234\n\n"

CODE = """
import base64
from pathlib import Path

import tiktoken
from transformers import PreTrainedTokenizer

held = {}


class PythonTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "python.tiktoken"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file, **kwargs):
        lines = Path(vocab_file).read_text().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}
        self.special = {"<|endoftext|>": len(ranks), "<|im_start|>": len(ranks) + 1}
        self.model = tiktoken.Encoding("python", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.special)
        super().__init__(eos_token="<|endoftext|>", **kwargs)

    @property
    def vocab_size(self):
        return self.model.n_vocab

    def get_vocab(self):
        return {str(number): number for number in range(256)} | self.special

    def encode(self, text, **kwargs):
        return self.model.encode(text, allowed_special="all")

    def _convert_token_to_id(self, token):
        return self.model.encode_single_token(token)

    def _convert_id_to_token(self, index):
        return self.model.decode_single_token_bytes(index)
"""


def make_folder(folder: Path, model_type: str, vocab_size: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": vocab_size}))
    return folder


def write_tekken(folder: Path) -> Any:
    """Write a tekken.json and return what it encodes to. The ids of special tokens come first."""
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in RANKS.items()
    ]
    size = len(RANKS) + len(SPECIAL)
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(RANKS),
        "default_vocab_size": size,
        "default_num_special_tokens": len(SPECIAL),
        "version": "v7",
    }
    special = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(SPECIAL)]
    tekken = {"config": config, "vocab": vocabulary, "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(tekken))
    return tiktoken.Encoding("tekken", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens={})


def encoded(folder: Path, directory: Path, *, trust_remote_code: bool = False) -> Tokenizer:
    return Tokenizer(directory, build_text_bundle(folder, directory, trust_remote_code=trust_remote_code))


def test_a_tekken_file_alone(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "mistral", len(RANKS) + len(SPECIAL))
    encoding = write_tekken(folder)
    tokenizer = encoded(folder, tmp_path / "bundle")
    ids = [token + len(SPECIAL) for token in encoding.encode(TEXT)]
    assert tokenizer.encode(TEXT) == [SPECIAL.index("<s>"), *ids]
    assert tokenizer.encode(f"[INST]{TEXT}", add_special_tokens=False) == [SPECIAL.index("[INST]"), *ids]
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.eos_token_ids == {SPECIAL.index("</s>")}


def test_a_tekken_file_beside_the_usual_one(tmp_path: Path) -> None:
    """vLLM brings mistral_common, for which transformers would choose another kind of tokenizer."""
    folder = make_folder(tmp_path / "model", "mistral", len(RANKS) + len(SPECIAL))
    write_tekken(folder)
    alone = encoded(folder, tmp_path / "bundle")
    alone.backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": "own"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    bundle = build_text_bundle(folder, tmp_path / "both")
    assert bundle.chat_template == "own"
    assert Tokenizer(tmp_path / "both", bundle).encode(TEXT) == alone.encode(TEXT)


def test_a_sentencepiece_file_under_a_name_of_mistral(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "mistral", 300)
    with (folder / "tokenizer.model.v3").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=io.StringIO(TEXT),
            model_writer=file,
            vocab_size=400,
            model_type="bpe",
            byte_fallback=True,
            add_dummy_prefix=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
        )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model.v3"))
    line = "Alice was beginning to get very tired."
    assert encoded(folder, tmp_path / "bundle").encode(line) == [processor.bos_id(), *processor.encode(line)]


def make_python(folder: Path, code: str) -> Any:
    make_folder(folder, "python", len(RANKS) + 2)
    lines = (f"{base64.b64encode(token).decode()} {rank}" for token, rank in RANKS.items())
    (folder / "python.tiktoken").write_text("\n".join(lines))
    (folder / "tokenization_python.py").write_text(code.replace("PATTERN", repr(PATTERN)))
    auto_map = {"AutoTokenizer": ["tokenization_python.PythonTokenizer", None]}
    settings = {"tokenizer_class": "PythonTokenizer", "auto_map": auto_map, "chat_template": "own"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    special = {"<|endoftext|>": len(RANKS), "<|im_start|>": len(RANKS) + 1}
    return tiktoken.Encoding("python", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens=special)


def test_python_code_around_tiktoken(tmp_path: Path) -> None:
    encoding = make_python(tmp_path / "model", CODE)
    tokenizer = encoded(tmp_path / "model", tmp_path / "bundle", trust_remote_code=True)
    text = f"{TEXT}<|im_start|>user\n{TEXT}<|endoftext|>"
    ids = encoding.encode(text, allowed_special="all")
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_ids == tokenizer.special_token_ids - {len(RANKS) + 1} == {len(RANKS)}


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        (
            "self.model.encode(text,",
            "self.model.encode(text.lower(),",
            "code not encode vocabulary",
        ),
        ("self.model.encode(text,", "self.missing(text,", "code raises AttributeError"),
        ("self.model", "held[0]", "PythonTokenizer converted tokenizer.json"),
    ],
)
def test_python_code_that_does_something_else_is_refused(tmp_path: Path, old: str, new: str, cause: str) -> None:
    make_python(tmp_path / "model", CODE.replace(old, new))
    with raises(ConfigError, cause):
        build_text_bundle(tmp_path / "model", tmp_path / "bundle", trust_remote_code=True)


def test_python_code_needs_trust(tmp_path: Path) -> None:
    make_python(tmp_path / "model", CODE)
    with pytest.raises(ConfigError, match="trust_remote_code"):
        build_text_bundle(tmp_path / "model", tmp_path / "bundle")
