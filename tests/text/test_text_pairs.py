"""Two texts are encoded and truncated as the `tokenizers` library does it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import processors

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.text.bundle import TOKENIZER_FILE, build_byte_bundle
from lmi_handlers.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with one token per byte and three special tokens per pair."""
    path = tmp_path_factory.mktemp("bundle")
    build_byte_bundle(path)
    backend = LibraryTokenizer.from_file(str(path / TOKENIZER_FILE))
    end = ("<|endoftext|>", 256)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{end[0]} $A {end[0]}", pair=f"{end[0]} $A {end[0]} $B:1 {end[0]}:1", special_tokens=[end]
    )
    backend.save(str(path / TOKENIZER_FILE))
    return path


@pytest.mark.parametrize("side", ["left", "right"])
def test_pairs_are_truncated_as_by_the_library(directory: Path, side: Literal["left", "right"]) -> None:
    ours = Tokenizer(directory, build_byte_bundle(directory / "other"))
    library = LibraryTokenizer.from_file(str(directory / TOKENIZER_FILE))
    texts = ["", "a", "abcdefg", "abcdefgh", "the quick brown fox jumps"]
    for first in texts:
        for second in texts:
            for limit in (4, 5, 8, 13, 19, 60):
                library.enable_truncation(limit, strategy="longest_first", direction=side)
                expected = library.encode(first, second)
                found = ours.encode_pair(first, second, truncate=limit, side=side)
                assert found == (expected.ids, expected.type_ids), (first, second, limit)
    library.no_truncation()
    whole = library.encode(texts[4], texts[3])
    assert ours.encode_pair(texts[4], texts[3]) == (whole.ids, whole.type_ids)


def test_only_the_outer_part_of_long_texts_is_encoded(directory: Path) -> None:
    tokenizer = Tokenizer(directory, build_byte_bundle(directory / "other"))
    long = "a" * 200_000 + "b" * 200_000
    for side, byte in (("right", ord("a")), ("left", ord("b"))):
        ids, types = tokenizer.encode_pair("q", long, truncate=10, side=side)  # type: ignore[arg-type]  # a literal
        assert (ids, types) == ([256, ord("q"), 256, *[byte] * 6, 256], [0, 0, 0, *[1] * 7])


def test_a_lone_surrogate_is_rejected(directory: Path) -> None:
    tokenizer = Tokenizer(directory, build_byte_bundle(directory / "other"))
    with pytest.raises(InvalidRequest, match="valid Unicode"):
        tokenizer.encode_pair("a", "\ud800")
