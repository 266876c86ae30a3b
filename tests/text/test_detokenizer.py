"""Token ids become text one by one, as the library decodes the whole sequence; encoding, and the text of single tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.model_files.locate import find_gguf
from lmi_handlers.text.bundle import TextBundle, build_byte_bundle, build_gguf_bundle
from lmi_handlers.text.detokenizer import (
    Detokenizer,
    PieceDetokenizer,
    WindowDetokenizer,
    make_detokenizer,
)
from lmi_handlers.text.tokenizer import Tokenizer

Save = Callable[[tokenizers.Tokenizer], Tokenizer]


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Save the library's tokenizer to files and load them as our `Tokenizer`."""

    def save(backend: tokenizers.Tokenizer) -> Tokenizer:
        directory = tmp_path_factory.mktemp("bundle")
        backend.save(str(directory / "tokenizer.json"))
        special = [token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special]
        bundle = TextBundle(vocab_size=backend.get_vocab_size(), eos_token_ids=(), special_token_ids=tuple(special))
        return Tokenizer(directory, bundle)

    return save


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("byte")
    return Tokenizer(directory, build_byte_bundle(directory))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = find_gguf(None, None)
    assert file is not None
    directory = tmp_path_factory.mktemp("smollm2")
    return Tokenizer(directory, build_gguf_bundle(file, directory))


@pytest.fixture(scope="module")
def llama(save: Save) -> Tokenizer:
    """SentencePiece BPE with byte fallback, as in Llama 2, Mistral and Gemma."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "a", "b", "c", "é", "▁a", "▁b", "ab", "▁ab", "<0xZZ>", "▁▁"]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁a", "b"), ("▁", "▁")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.add_tokens([AddedToken("[TOOL▁]", special=False, normalized=False)])
    return save(backend)


@pytest.fixture(scope="module")
def metaspace(save: Save) -> Tokenizer:
    """Unigram with the Metaspace decoder, as in T5."""
    tokens = ["<pad>", "</s>", "<unk>", "▁", "▁a", "▁b", "a", "b", "c", "ab", "\ufffd"]
    backend = tokenizers.Tokenizer(models.Unigram([(token, -1.0) for token in tokens], unk_id=2))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return save(backend)


@pytest.fixture(scope="module")
def wordpiece(save: Save) -> Tokenizer:
    tokens = ["[UNK]", "[SEP]", "un", "##able", "##s", "do", "a"]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(["[UNK]", "[SEP]"])
    return save(backend)


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.backend.token_to_id(token)
    assert token_id is not None
    return token_id


def pieces(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [detokenizer.feed(token_id) for token_id in ids]


def decode_after(tokenizer: Tokenizer, prompt: list[int], ids: list[int], *, skip: bool) -> str:
    """Return what the library decodes from prompt and ids, without the text of the prompt."""
    start = tokenizer.backend.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.backend.decode(prompt + ids, skip_special_tokens=skip)
    assert whole.startswith(start)
    return whole[len(start) :]


# Byte-level BPE


@pytest.mark.model
@given(data=st.data(), skip=st.booleans())
def test_smollm2_ids_are_decoded_as_by_the_library(smollm2: Tokenizer, data: st.DataObject, skip: bool) -> None:
    # Half of the ids are single bytes or special tokens, the difficult cases. The last id ends any incomplete character.
    alone = [id_of(smollm2, char) for char in "ÃÂâĢðŁĺĢ"]
    some_id = st.integers(0, 49_151) | st.sampled_from([*alone, *range(17), 49_152, 10**9])
    ids = [*data.draw(st.lists(some_id, max_size=40)), id_of(smollm2, "!")]
    known = [token_id for token_id in ids if token_id < 49_152]
    expected = smollm2.backend.decode(known, skip_special_tokens=skip)
    assert "".join(pieces(make_detokenizer(smollm2, [1], skip_special_tokens=skip), ids)) == expected


@pytest.mark.model
@given(text=st.text(max_size=40), skip=st.booleans())
def test_smollm2_text_is_decoded_as_by_the_library(smollm2: Tokenizer, text: str, skip: bool) -> None:
    # This is not always the text itself, because the vocabulary lacks some bytes, such as those of control characters.
    ids = smollm2.encode(text + "!")
    expected = smollm2.backend.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces(make_detokenizer(smollm2, [1], skip_special_tokens=skip), ids)) == expected


@pytest.mark.model
def test_smollm2_keeps_leading_spaces_and_returns_whole_characters(smollm2: Tokenizer) -> None:
    ids = smollm2.encode(" the 🦙!")
    texts = pieces(make_detokenizer(smollm2, smollm2.encode("Once"), skip_special_tokens=True), ids)
    assert texts[0] == " the"
    assert texts[-1] == "!"
    assert [text for text in texts[1:-1] if text] in ([" ", "🦙"], [" 🦙"])
    assert "" in texts


@pytest.mark.model
@given(text=st.text(st.characters(max_codepoint=0x2FFF) | st.just("😀"), max_size=40))
def test_both_detokenizers_return_the_same_text(smollm2: Tokenizer, text: str) -> None:
    ids = [*smollm2.encode(text), id_of(smollm2, "!")]
    window = WindowDetokenizer(smollm2, [1, 2, 3], skip_special_tokens=True)
    table = make_detokenizer(smollm2, [1, 2, 3], skip_special_tokens=True)
    assert isinstance(table, PieceDetokenizer)
    assert "".join(pieces(window, ids)) == "".join(pieces(table, ids))


@given(data=st.lists(st.integers(0, 256), max_size=40), skip=st.booleans())
def test_byte_ids_are_decoded_as_by_the_library(byte_tokenizer: Tokenizer, data: list[int], skip: bool) -> None:
    ids = [*data, ord("!")]
    expected = byte_tokenizer.backend.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces(make_detokenizer(byte_tokenizer, [65], skip_special_tokens=skip), ids)) == expected


@given(st.text(max_size=60).filter(lambda text: "<|endoftext|>" not in text))
def test_the_ids_of_the_byte_tokenizer_are_the_bytes_of_the_text(byte_tokenizer: Tokenizer, text: str) -> None:
    assert byte_tokenizer.encode(text) == list(text.encode())


def test_a_character_is_returned_with_its_last_byte(byte_tokenizer: Tokenizer) -> None:
    window = WindowDetokenizer(byte_tokenizer, [], skip_special_tokens=True)
    for detokenizer in (make_detokenizer(byte_tokenizer, [], skip_special_tokens=True), window):
        assert pieces(detokenizer, list("é€😀".encode())) == ["", "é", "", "", "€", "", "", "", "😀"]


def test_an_invalid_byte_becomes_a_replacement_character(byte_tokenizer: Tokenizer) -> None:
    detokenizer = make_detokenizer(byte_tokenizer, [], skip_special_tokens=True)
    assert pieces(detokenizer, [0xE2, 0x82, ord("a"), 0xFF, ord("b")]) == ["", "", "\ufffda", "\ufffd", "b"]


@pytest.mark.parametrize(("skip", "texts"), [(True, ["", "", "é"]), (False, ["", "\ufffd<|endoftext|>", "\ufffd"])])
def test_special_tokens_become_text_only_if_they_are_not_skipped(
    byte_tokenizer: Tokenizer, skip: bool, texts: list[str]
) -> None:
    assert pieces(make_detokenizer(byte_tokenizer, [], skip_special_tokens=skip), [0xC3, 256, 0xA9]) == texts


def test_added_tokens_of_a_byte_level_vocabulary_stand_for_their_literal_text(
    byte_tokenizer: Tokenizer, save: Save
) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_tokenizer.backend.to_str())
    backend.add_tokens([AddedToken("<think> 日本", normalized=False)])
    tokenizer = save(backend)
    ids = tokenizer.encode("a<think> 日本é")
    assert ids == [ord("a"), 257, 0xC3, 0xA9]
    assert pieces(make_detokenizer(tokenizer, [], skip_special_tokens=True), ids) == ["a", "<think> 日本", "", "é"]


# SentencePiece with byte fallback


def llama_text(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> str:
    """Return the text as `decode` does, except for invalid bytes and the first space."""
    data = b""
    for token_id in ids:
        token = tokenizer.backend.id_to_token(token_id) or ""
        if 3 <= token_id < 259:
            data += bytes([token_id - 3])
        elif not (skip and tokenizer.is_special(token_id)):
            data += token.replace("▁", " ").encode()
    return data.decode("utf-8", "replace")


LLAMA_IDS = st.lists(st.integers(0, 270), max_size=40)
LLAMA_CHARACTERS = st.characters(exclude_categories=["Cs"]).map(lambda char: [byte + 3 for byte in char.encode()])
LLAMA_WHOLE_IDS = st.lists(LLAMA_CHARACTERS | st.integers(0, 270).filter(lambda i: not 3 <= i < 259).map(lambda i: [i]))


@given(ids=LLAMA_IDS, skip=st.booleans())
def test_llama_ids_are_decoded_as_by_the_library(llama: Tokenizer, ids: list[int], skip: bool) -> None:
    assert isinstance(make_detokenizer(llama, [1], skip_special_tokens=skip), PieceDetokenizer)
    ids = [*ids, id_of(llama, "a")]
    expected = llama_text(llama, ids, skip=skip)
    assert "".join(pieces(make_detokenizer(llama, [1], skip_special_tokens=skip), ids)) == expected


@given(groups=LLAMA_WHOLE_IDS, skip=st.booleans())
def test_llama_whole_characters_are_decoded_as_by_the_library(
    llama: Tokenizer, groups: list[list[int]], skip: bool
) -> None:
    ids = [token_id for group in groups for token_id in group]
    prompt = llama.encode("a b")
    expected = decode_after(llama, prompt, ids, skip=skip)
    assert "".join(pieces(make_detokenizer(llama, prompt, skip_special_tokens=skip), ids)) == expected


@given(text=st.text("ab é😀\n", max_size=20) | st.text(max_size=20))
def test_llama_text_is_unchanged_by_encoding_and_decoding(llama: Tokenizer, text: str) -> None:
    ids = llama.encode(text)
    expected = " " + text if text else ""  # SentencePiece adds a space before a text, and takes ▁ for one
    assert "".join(pieces(make_detokenizer(llama, [1], skip_special_tokens=True), ids)) == expected


def test_llama_byte_tokens_and_spaces(llama: Tokenizer) -> None:
    ids = [id_of(llama, token) for token in ("▁ab", "<0xC3>", "<0xA9>", "<0x0A>", "</s>", "<0xZZ>", "▁")]
    detokenizer = make_detokenizer(llama, [1], skip_special_tokens=True)
    assert pieces(detokenizer, ids) == [" ab", "", "é", "\n", "", "<0xZZ>", " "]


# All other decoders


@given(
    ids=st.lists(st.sampled_from([3, 4, 5, 6, 7, 8, 9]), max_size=20),
    start=st.lists(st.sampled_from([4, 9]), min_size=1),
)
def test_metaspace_ids_are_decoded_as_by_the_library(metaspace: Tokenizer, ids: list[int], start: list[int]) -> None:
    detokenizer = make_detokenizer(metaspace, start, skip_special_tokens=True)
    assert isinstance(detokenizer, WindowDetokenizer)
    assert "".join(pieces(detokenizer, ids)) == decode_after(metaspace, start, ids, skip=True)


@given(ids=st.lists(st.integers(0, 6), max_size=20), skip=st.booleans())
def test_wordpiece_ids_are_decoded_as_by_the_library(wordpiece: Tokenizer, ids: list[int], skip: bool) -> None:
    expected = decode_after(wordpiece, [5], ids, skip=skip)
    assert "".join(pieces(make_detokenizer(wordpiece, [5], skip_special_tokens=skip), ids)) == expected


def test_metaspace_keeps_the_leading_space_after_a_special_token(metaspace: Tokenizer) -> None:
    assert pieces(make_detokenizer(metaspace, [1], skip_special_tokens=True), [4, 1, 4]) == [" a", "", " a"]


def test_the_space_is_kept_after_ids_without_text(metaspace: Tokenizer) -> None:
    assert pieces(make_detokenizer(metaspace, [4], skip_special_tokens=True), [10**6, 10**6, 5]) == ["", "", " b"]


@pytest.mark.timeout(60)
def test_ids_without_text_take_linear_time(metaspace: Tokenizer) -> None:
    # A window that kept them would decode 5 * 10^9 ids in total.
    detokenizer = make_detokenizer(metaspace, [4], skip_special_tokens=True)
    assert "".join(pieces(detokenizer, [10**6] * 100_000)) == ""


def test_a_token_that_is_a_replacement_character_delays_but_does_not_block(metaspace: Tokenizer) -> None:
    texts = pieces(make_detokenizer(metaspace, [4], skip_special_tokens=True), [10] * 9 + [6])
    assert "".join(texts) == "\ufffd" * 9 + "a"
    assert any(texts[:-1])


# Single tokens


def test_token_text(byte_tokenizer: Tokenizer, llama: Tokenizer, metaspace: Tokenizer, wordpiece: Tokenizer) -> None:
    assert byte_tokenizer.token_text(256) == "<|endoftext|>"
    assert byte_tokenizer.token_text(0xC3) == "\ufffd"
    assert byte_tokenizer.token_text(10**9) == ""
    assert llama.token_text(id_of(llama, "▁ab")) == " ab"
    assert llama.token_text(2) == "</s>"
    assert metaspace.token_text(4) == " a"
    assert metaspace.token_text(6) == "a"
    assert wordpiece.token_text(3) == "able"
    assert wordpiece.token_text(5) == " do"


def joined(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(tokenizer.token_bytes[token_id] for token_id in ids)


@given(st.text(max_size=60))
def test_the_bytes_of_byte_tokens_are_the_bytes_of_the_text(byte_tokenizer: Tokenizer, text: str) -> None:
    assert joined(byte_tokenizer, byte_tokenizer.encode(text)) == text.encode()


@given(text=st.text("ab é😀\n", max_size=20) | st.text(st.characters(exclude_characters="▁"), max_size=20))
def test_the_bytes_of_llama_tokens_are_the_bytes_of_the_text(llama: Tokenizer, text: str) -> None:
    expected = " " + text if text else ""  # SentencePiece adds a space before a text
    assert joined(llama, llama.encode(text)) == expected.encode()


@pytest.mark.model
@given(text=st.text(max_size=40))
def test_the_bytes_of_smollm2_tokens_are_those_that_the_library_decodes(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    expected = smollm2.backend.decode(ids, skip_special_tokens=False)
    assert joined(smollm2, ids).decode("utf-8", "replace") == expected


def test_token_bytes(byte_tokenizer: Tokenizer, llama: Tokenizer, metaspace: Tokenizer, wordpiece: Tokenizer) -> None:
    assert byte_tokenizer.token_bytes[0xC3] == b"\xc3"
    assert byte_tokenizer.token_bytes[256] == b"<|endoftext|>"
    assert byte_tokenizer.token_bytes[10**9] == b""
    assert llama.token_bytes[id_of(llama, "▁ab")] == b" ab"
    assert llama.token_bytes[id_of(llama, "<0xC3>")] == b"\xc3"
    assert llama.token_bytes[id_of(llama, "<0xZZ>")] == b"<0xZZ>"
    assert llama.token_bytes[id_of(llama, "é")] == "é".encode()
    assert llama.token_bytes[2] == b"</s>"
    assert metaspace.token_bytes[4] == b" a"
    assert wordpiece.token_bytes[5] == b" do"


def test_is_special(llama: Tokenizer) -> None:
    assert llama.is_special(2)
    assert not llama.is_special(id_of(llama, "[TOOL▁]"))


# Encoding


def test_truncate_keeps_the_end(byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.encode("abcdef", truncate=2) == [ord("e"), ord("f")]
    assert byte_tokenizer.encode("ab", truncate=9) == [ord("a"), ord("b")]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_lone_surrogates_are_rejected(byte_tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequest, match="Unicode") as raised:
        byte_tokenizer.encode(text)
    assert raised.value.field == "inputs"


LONG_TEXTS = {
    "prose": "The quick brown fox, aged 7, jumps over\n\tthe lazy dog's  back. " * 1200,
    "words": "a b " * 20_000,
    "no spaces": "abc" * 25_000,
    "Japanese": "日本語の文章です。" * 8_000,
    "spaces": " " * 80_000,
}


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
@pytest.mark.parametrize("name", ["smollm2", "byte_tokenizer", "llama"])
def test_long_texts_are_tokenised_as_by_the_library(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    expected = tokenizer.backend.encode(text).ids
    assert tokenizer.encode(text) == expected
    if text.strip():  # otherwise there are no words to cut between
        assert tokenizer.encode(text, truncate=1000) == expected[-1000:]
    assert tokenizer.decode(expected) == tokenizer.backend.decode(expected, skip_special_tokens=False)
    for limit in (100, len(expected) // 2, len(expected) - 1, len(expected), len(expected) + 100):
        estimate = tokenizer.estimate_beyond(text, limit)
        assert estimate is None or len(expected) > limit
        assert estimate is not None or len(expected) < 2 * limit + 1000


def test_only_the_start_of_a_text_that_is_certainly_too_long_is_tokenised(smollm2: Tokenizer) -> None:
    """The text has a million tokens. Its length alone exceeds the limit times the longest token."""
    longest = max(map(len, smollm2.backend.get_vocab()))
    text = "a b " * 500_000
    started = time.process_time()
    estimate = smollm2.estimate_beyond(text, len(text) // longest - 1)
    assert estimate == pytest.approx(1_000_000, rel=0.01)
    assert time.process_time() - started < 1  # tokenising all of it takes 5 s


def test_the_error_for_a_missing_tokenizer_names_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        Tokenizer(tmp_path, TextBundle(vocab_size=1, eos_token_ids=(), special_token_ids=()))
