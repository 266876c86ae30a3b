"""GGUF files: our reader and tokenizer against transformers' conversion."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import msgspec
import pytest
import tokenizers
from facts import raises, says
from gguf_files import BYTE, CONTROL, NORMAL, TOKENS, UNKNOWN, USER_DEFINED, make_gguf, merges_within
from paths import ROOT
from serving import lmi_check
from tokenizers import pre_tokenizers

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import read_gguf_header
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.locate import find_gguf
from lmi_handlers.model_files.resolve import resolve_model
from lmi_handlers.text.bundle import TOKENIZER_FILE, build_gguf_bundle, build_text_bundle, load_text_bundle
from lmi_handlers.text.tokenizer import Tokenizer

METASPACE = "\u2581"


def texts() -> list[str]:
    """Prose, Markdown and code, rare whitespace, several scripts, special tokens, and random characters."""
    chosen = random.Random(0)
    ranges = (range(32, 127), range(0xA0, 0x500), range(0x4E00, 0x4F00), range(0x1F600, 0x1F640), (0x20, 0x0A, 0x0D))
    return [
        *(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))),
        "  two, then\t\n\r\n   123 4567 12345.67 ..!! \u00a0 \u200b",
        "\u00e9 e\u0301 \u6f22\u5b57 \U0001f389 don't DON'T we'LL",
        "<|im_start|>user\n<issue_start>x<|im_end|> <s></s> <think>abab</think>",
        *("".join(chr(chosen.choice(chosen.choice(ranges))) for _ in range(60)) for _ in range(300)),
    ]


def assert_same_as_converted(
    gguf_file: Path, tmp_path: Path, *, single_digits: bool = False, cache_dir: Path | None = None
) -> None:
    """transformers splits no digits from each other, as some models do, and adds no BOS token."""
    folder = resolve_model(
        str(gguf_file),
        model_dir=None,
        revision=None,
        cache_dir=cache_dir or tmp_path / "cache",
        report=lambda phase: None,
    )
    expected = build_text_bundle(folder, tmp_path / "converted")
    bundle = build_gguf_bundle(gguf_file, tmp_path / "read")
    expected = msgspec.structs.replace(expected, tokenizer_hash="")  # the same tokenizer, written differently
    assert msgspec.structs.replace(bundle, warning="") == expected
    theirs, ours = (
        tokenizers.Tokenizer.from_file(str(tmp_path / way / TOKENIZER_FILE)) for way in ("converted", "read")
    )
    if single_digits:
        theirs.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), theirs.pre_tokenizer])
    assert ours.get_vocab() == theirs.get_vocab()
    for text in texts():
        encoding, other = (tokenizer.encode(text, add_special_tokens=False) for tokenizer in (ours, theirs))
        assert (encoding.ids, encoding.offsets) == (other.ids, other.offsets), text
        for skip in (False, True):
            assert ours.decode(encoding.ids, skip_special_tokens=skip) == theirs.decode(
                encoding.ids, skip_special_tokens=skip
            )


@pytest.mark.model
def test_default_model(tmp_path: Path) -> None:
    file = find_gguf(None, None)
    assert file is not None
    assert_same_as_converted(file, tmp_path, single_digits=True, cache_dir=default_cache_dir(os.environ))


@pytest.mark.parametrize(
    ("architecture", "pre", "bos"),
    [
        ("llama", "llama-bpe", 1),
        ("qwen2", "qwen2", None),
        *(
            pytest.param(*row, marks=pytest.mark.long)
            for row in (
                ("llama", "tekken", 1),
                ("qwen2", "deepseek-r1-qwen", 1),
                ("qwen3", "qwen2", 1),
                ("llama", "gpt-2", 1),
                ("llama", "unheard-of", 1),
            )
        ),
    ],
)
@pytest.mark.model
def test_byte_level_tokenizers(architecture: str, pre: str, bos: int | None, tmp_path: Path) -> None:
    """The start of the default model's vocabulary under other rules for splitting text; two tokens are not special."""
    source = find_gguf(None, None)
    assert source is not None
    metadata = read_gguf_header(source).metadata
    tokens = [*metadata["tokenizer.ggml.tokens"][:8000], "12", "123", "1234"]
    types = [*metadata["tokenizer.ggml.token_type"][:8000], NORMAL, NORMAL, NORMAL]
    types[8] = types[30] = USER_DEFINED
    file = make_gguf(
        tmp_path / "tiny.gguf",
        architecture,
        pre=pre,
        tokens=tokens,
        types=types,
        merges=[*merges_within(tokens, metadata["tokenizer.ggml.merges"]), "1 2", "12 3", "123 4"],
        bos=bos,
    )
    assert_same_as_converted(file, tmp_path)


def test_sentencepiece_tokenizer(tmp_path: Path) -> None:
    words = ["t", "he", "the", "in", "a", "er", "on", "re", "nd", "s", "at", "en", "and", "ing"]
    pieces = [METASPACE, 2 * METASPACE, *map(chr, range(33, 127)), *words[1:], *(METASPACE + word for word in words)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys(pieces)]
    file = make_gguf(
        tmp_path / "tiny.gguf",
        kind="llama",
        tokens=tokens,
        types=[UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 259)],
        scores=[0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)],
    )
    assert_same_as_converted(file, tmp_path)


def test_special_tokens_outside_the_alphabet_keep_their_ids(tmp_path: Path) -> None:
    """As in DeepSeek's distilled models. transformers cuts them into pieces."""
    tokens = ["<unk>", "<s>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "a", "b", "ab", "<\uff5cUser\uff5c>"]
    types = [CONTROL] * 3 + [NORMAL] * 3 + [USER_DEFINED]
    file = make_gguf(tmp_path / "tiny.gguf", tokens=tokens, types=types)
    bundle = build_gguf_bundle(file, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / TOKENIZER_FILE))
    assert tokenizer.encode(f"{tokens[6]}ab{tokens[2]}").ids == [6, 5, 2]
    assert tokenizer.get_vocab_size() == bundle.vocab_size == 7
    assert bundle.special_token_ids == (0, 1, 2)


def test_digits_are_split_from_each_other_where_the_file_says_so(tmp_path: Path) -> None:
    tokens = ("<unk>", "<s>", "</s>", *"ab12\u0120", "12", "\u0120\u0120")
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)
    encoded = {}
    for pre in ("smollm", "gpt-2"):
        file = make_gguf(tmp_path / f"{pre}.gguf", pre=pre, tokens=tokens, types=types, merges=("1 2", "\u0120 \u0120"))
        build_gguf_bundle(file, tmp_path / pre)
        tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / pre / TOKENIZER_FILE))
        encoded[pre] = tokenizer.encode("a  12").tokens
    assert encoded["smollm"] == ["a", "\u0120\u0120", "1", "2"]
    assert encoded["gpt-2"] == ["a", "\u0120", "\u0120", "12"]


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("llama-bpe", ""),
        ("smollm", ""),
        ("unheard-of", "tokenizer.ggml.pre=unheard-of not known GPT-2"),
        (None, "GGUF no tokenizer.ggml.pre: GPT-2"),
    ],
)
def test_warning_names_an_unknown_way_to_split(pre: str | None, words: str, tmp_path: Path) -> None:
    bundle = build_gguf_bundle(make_gguf(tmp_path / "tiny.gguf", pre=pre), tmp_path)
    assert says(bundle.warning, words) if words else not bundle.warning
    assert load_text_bundle(tmp_path).warning == bundle.warning  # for the next start


@pytest.mark.parametrize(
    ("kind", "pre", "add_bos", "expected"),
    [
        ("gpt2", "gpt-2", None, [11]),
        ("gpt2", "gpt-2", True, [1, 11]),
        ("gpt2", "llama-bpe", None, [1, 11]),
        ("gpt2", "tekken", None, [1, 11]),
        ("gpt2", "llama-bpe", False, [11]),
        ("llama", "default", None, [1, 11]),
        ("llama", "default", False, [11]),
    ],
)
def test_bos_token_begins_a_plain_prompt_as_in_llama_cpp(
    kind: str, pre: str, add_bos: bool | None, expected: list[int], tmp_path: Path
) -> None:
    tokens = (*TOKENS[:-1], "\u2581" * (kind == "llama") + "ab")
    merges = ("a b",) if kind == "gpt2" else ("\u2581 a", "\u2581a b")
    if kind == "llama":
        tokens = (*tokens, "\u2581", "\u2581a")
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)
    file = make_gguf(
        tmp_path / "tiny.gguf", kind=kind, pre=pre, tokens=tokens, types=types, merges=merges, add_bos=add_bos
    )
    tokenizer = Tokenizer(tmp_path, build_gguf_bundle(file, tmp_path))
    assert tokenizer.encode("ab") == expected
    assert tokenizer.encode("ab", add_special_tokens=False) == expected[-1:]


@pytest.mark.parametrize(
    ("kind", "add_space", "begins_with"),
    [("llama", None, " "), ("llama", True, " "), ("llama", False, ""), ("gpt2", None, ""), ("gpt2", True, "")],
)
def test_a_space_begins_a_text_as_in_llama_cpp(
    kind: str, add_space: bool | None, begins_with: str, tmp_path: Path
) -> None:
    """`tokenize` of llama.cpp's llama-vocab.cpp: a space is put before a text for SPM with `add_space_prefix` only.

    `detokenize` drops the first space if it is set, and no other. With a space, only texts that do not begin with one
    are compared: transformers, which we follow there, adds none to those.
    """
    space = METASPACE if kind == "llama" else "\u0120"
    tokens = ("<unk>", "<s>", "</s>", *"abc", "ba", space, *(f"<0x{byte:02X}>" for byte in range(256)))
    types = [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * 5, *[BYTE] * 256]
    file = make_gguf(
        tmp_path / "tiny.gguf",
        kind=kind,
        pre="gpt-2",
        tokens=tokens,
        types=types,
        merges=("b a",),
        add_bos=False,
        add_space=add_space,
    )
    build_gguf_bundle(file, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / TOKENIZER_FILE))
    for text in ("abc", "a  bc ", *(() if begins_with else (" abc", "  c"))):
        encoding = tokenizer.encode(text)
        assert encoding.tokens == list((begins_with + text).replace(" ", space))
        assert tokenizer.decode(encoding.ids) == text


def test_header(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf", "qwen3")
    header = read_gguf_header(file)
    assert (header.architecture, header.context_length, header.weight_types) == ("qwen3", 64, frozenset({"F32"}))
    read = gguf.GGUFReader(file).tensors
    assert [(tensor.name, tensor.shape, tensor.type, tensor.offset) for tensor in header.tensors] == [
        (tensor.name, tuple(reversed(tensor.shape)), tensor.tensor_type.name, tensor.data_offset) for tensor in read
    ]
    assert header.tensors
    assert header.metadata["tokenizer.ggml.token_type"][:4] == (3, 3, 3, 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"PK" + data[2:],
        lambda data: data[:4] + struct.pack("<I", 9) + data[8:],
        lambda data: data[:100],
        lambda data: data[:24] + struct.pack("<Q", 2**60) + data[32:],
        lambda data: data[:24] + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 77),
        lambda data: data[:16] + struct.pack("<QQ", 1, 1) + b"a" + struct.pack("<IIQ", 9, 4, 2**61),
        lambda data: (
            data[:16] + struct.pack("<QQ", 1, 1) + b"a" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
        ),
    ],
)
def test_damaged_file(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "tiny.gguf")
    file.write_bytes(damage(file.read_bytes()))
    with raises(ConfigError, "option.model_id: tiny.gguf read GGUF"):
        read_gguf_header(file)


def test_tokenizer_of_an_unknown_kind(tmp_path: Path) -> None:
    with raises(ConfigError, "bert not supported gpt2 llama"):
        build_gguf_bundle(make_gguf(tmp_path / "tiny.gguf", kind="bert"), tmp_path)


def encoded(kind: int, value: object) -> bytes:
    """A value of GGUF's type `kind`. Arrays are `(kind of the items, items)`."""
    if kind == 8:
        data = str(value).encode()
        return struct.pack("<Q", len(data)) + data
    if kind == 9:
        assert isinstance(value, tuple)
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(encoded(inner, item) for item in items)
    return struct.pack("<" + "BbHhIif?__Qqd"[kind], value)


def write_metadata(file: Path, values: dict[str, tuple[int, object]]) -> Path:
    """A GGUF file without tensors."""
    pairs = (encoded(8, key) + struct.pack("<I", kind) + encoded(kind, value) for key, (kind, value) in values.items())
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(pairs))
    return file


COMPLETE: dict[str, tuple[int, object]] = {
    "general.architecture": (8, "llama"),
    "general.alignment": (4, 32),
    **{
        f"llama.{name}": (4, 64)
        for name in (
            "context_length",
            "block_count",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "attention.head_count_kv",
            "attention.key_length",
        )
    },
    "tokenizer.ggml.model": (8, "gpt2"),
    "tokenizer.ggml.pre": (8, "llama-bpe"),
    "tokenizer.ggml.tokens": (9, (8, TOKENS)),
    "tokenizer.ggml.token_type": (9, (5, [CONTROL] * 3 + [NORMAL] * 9)),
    "tokenizer.ggml.merges": (9, (8, ["a b"])),
    "tokenizer.ggml.scores": (9, (6, [0.0] * 12)),
    **{f"tokenizer.ggml.{name}_token_id": (4, 1) for name in ("bos", "eos", "unknown", "padding")},
    "tokenizer.ggml.add_bos_token": (7, True),
    "tokenizer.ggml.add_space_prefix": (7, True),
    "tokenizer.chat_template": (8, "{{ messages[0].content }}"),
    "tokenizer.chat_template.tool_use": (8, "x"),
}
VALUES: list[tuple[int, object]] = [
    *((kind, 1) for kind in (0, 1, 2, 3, 4, 5, 10, 11)),
    *((kind, -1) for kind in (1, 3, 5, 11)),
    *((kind, 0) for kind in (0, 4, 10)),
    (10, 2**64 - 1),
    (6, 0.5),
    (6, float("nan")),
    (12, float("inf")),
    (7, True),
    (8, ""),
    (8, "gpt2"),
    (8, "two\nlines"),
    (8, "x" * 300_000),
    *((9, (kind, items)) for kind in (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12) for items in ([], [1], [1] * 12)),
    (9, (8, [])),
    (9, (8, ["a", "b\n"])),
    (9, (8, ["x" * 300_000, *TOKENS])),
    (9, (9, [])),
    (9, (9, [(8, ["a"]), (4, [1])])),
]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("key", COMPLETE)
def test_metadata_of_any_type_is_read_or_refused_in_one_line(key: str, kind: str, tmp_path: Path) -> None:
    complete = COMPLETE | {"tokenizer.ggml.model": (8, kind)}
    if kind == "llama":
        del complete["tokenizer.ggml.merges"]
    build_gguf_bundle(write_metadata(tmp_path / "whole.gguf", complete), tmp_path / "whole")
    errors = []
    for value in VALUES:
        file = write_metadata(tmp_path / "tiny.gguf", complete | {key: value})
        try:
            build_gguf_bundle(file, tmp_path / "bundle")
        except ConfigError as error:
            errors.append(str(error))
        else:
            load_text_bundle(tmp_path / "bundle")
    assert len(errors) > len(VALUES) / 3
    assert not [error for error in errors if not error.startswith("option.model_id: ") or "\n" in error or error[1000:]]


def test_lmi_check_names_metadata_of_a_wrong_type(tmp_path: Path) -> None:
    for backend, key, value in (
        ("echo", "tokenizer.chat_template", (4, 7)),
        ("transformers", "tokenizer.ggml.tokens", (9, (8, ["x" * 300_000]))),
        ("auto", "tokenizer.ggml.eos_token_id", (4, 12)),
    ):
        directory = tmp_path / backend
        directory.mkdir()
        write_metadata(directory / "model.gguf", COMPLETE | {key: value})
        (directory / "serving.properties").write_text(f"option.model_id=.\noption.rolling_batch={backend}\n")
        checked = lmi_check(directory)
        assert checked.returncode == 1
        assert "Traceback" not in checked.stdout + checked.stderr
        assert says(checked.stdout + checked.stderr, "model.gguf read GGUF")
