"""Builds a tokenizer from the metadata of a GGUF file, which has the vocabulary and the merges but no tokenizer.json.

Hand-written, because transformers' converter needs torch. A test compares the two. Supports byte-level BPE
(`tokenizer.ggml.model` is "gpt2"), the tokenizers of Llama 3, Qwen and SmolLM, and SentencePiece BPE ("llama"), those
of Llama 2 and Mistral.

Both follow llama.cpp (https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp) where transformers does not:

* `tokenizer.ggml.add_bos_token` says whether a plain prompt begins with the BOS token. Without it, SentencePiece adds
  one, and byte-level BPE does for Llama 3 and Tekken. transformers ignores it and never adds one.
* `tokenizer.ggml.add_space_prefix` says whether SentencePiece puts a space before a text, as it does by default. Then
  the text of the answer begins without one. Byte-level BPE never does.
* llama.cpp refuses to load a file whose `tokenizer.ggml.pre` it does not know, and transformers splits such text as for
  GPT-2 without a word. Here that is done with a warning, because nothing else could serve the file better.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.text.byte_level import byte_characters

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # llama.cpp's types of a token
_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}

# How text is split before merging
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(regex: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), byte_level])


_LIKE_LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion"), _gpt2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _single_digits),
    **dict.fromkeys((*_LIKE_LLAMA3, "smaug-bpe", "dbrx"), functools.partial(_split, _LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), functools.partial(_split, _QWEN2)),
    "tekken": functools.partial(_split, _TEKKEN),
}
"""`tokenizer.ggml.pre` -> function that makes what splits the text."""

_BEGIN_WITH_BOS = (*_LIKE_LLAMA3, "tekken")
"""Values of `tokenizer.ggml.pre` for which a BOS token is added unless the file says otherwise."""


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that `metadata` describes. Raises `ConfigError` if its kind is not supported."""
    kind = str(metadata.get("tokenizer.ggml.model"))
    if kind not in _BUILDERS:
        raise ConfigError(f"tokenizers of the kind {kind!r} are not supported, only {' and '.join(_BUILDERS)}")
    kinds = list(zip(_tokens(metadata), metadata.get("tokenizer.ggml.token_type", ()), strict=False))
    special = [*special_tokens(metadata).values(), *(token for token, kind in kinds if kind in (_UNKNOWN, _CONTROL))]
    plain = [token for token, kind in kinds if kind == _USER_DEFINED]
    tokenizer = _BUILDERS[kind](metadata, {*special, *plain})
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in plain])
    bos_token_id = metadata.get("tokenizer.ggml.bos_token_id")
    if bos_token_id is not None and _adds_bos(metadata):
        bos = {"id": "bos", "ids": [bos_token_id], "tokens": [_tokens(metadata)[bos_token_id]]}
        tokenizer.post_processor = processors.TemplateProcessing(single=["bos", "$A"], special_tokens=[bos])
    return tokenizer


def split_warning(metadata: Mapping[str, Any]) -> str:
    """Return a sentence for the log if the tokenizer may give other tokens than the model was trained with, else ""."""
    pre = metadata.get("tokenizer.ggml.pre")
    if metadata.get("tokenizer.ggml.model") != "gpt2" or pre in _PRE_TOKENIZERS:
        return ""
    named = "has no tokenizer.ggml.pre" if pre is None else f"has tokenizer.ggml.pre={pre}, which is not known here"
    return f"the GGUF file {named}: text is split as for GPT-2, so some of it may become other tokens than in training"


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    by_default = metadata["tokenizer.ggml.model"] == "llama" or metadata.get("tokenizer.ggml.pre") in _BEGIN_WITH_BOS
    return bool(metadata.get("tokenizer.ggml.add_bos_token", by_default))


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens that chat templates may use by name, such as "bos_token"."""
    ids = {name: metadata.get(f"tokenizer.ggml.{key}") for name, key in _SPECIAL_TOKENS.items()}
    return {name: _tokens(metadata)[token_id] for name, token_id in ids.items() if token_id is not None}


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    return tokens


def _byte_level(metadata: Mapping[str, Any], added: Set[str]) -> Tokenizer:
    characters = byte_characters()
    alphabet = set(characters)
    vocab = {
        token
        if token in added or alphabet.issuperset(token)
        else "".join(characters[byte] for byte in token.encode()): token_id
        for token_id, token in enumerate(_tokens(metadata))
    }
    merges = _listed_merges(metadata["tokenizer.ggml.merges"])
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix=""))
    if str(metadata["general.architecture"]).startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS.get(str(metadata.get("tokenizer.ggml.pre")), _gpt2)()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Mapping[str, Any], added: Set[str]) -> Tokenizer:  # noqa: ARG001
    vocab = {token: token_id for token_id, token in enumerate(_tokens(metadata))}
    listed = metadata.get("tokenizer.ggml.merges")
    merges = _scored_merges(vocab, metadata["tokenizer.ggml.scores"]) if listed is None else _listed_merges(listed)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True))
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if has_prefix else "never", split=False)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return tokenizer


def _listed_merges(merges: Sequence[str]) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]


def _scored_merges(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the pairs of tokens that make a token, in the order in which SentencePiece merges them."""
    pairs = [
        (left, right, scores[token_id])
        for token, token_id in vocab.items()
        for left, right in sorted(
            ((token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab),
            key=lambda pair: (vocab[pair[0]], vocab[pair[1]]),
        )
    ]
    pairs.sort(key=lambda pair: (pair[2], len(pair[0]), len(pair[1])), reverse=True)
    return [(left, right) for left, right, _ in pairs]


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any], Set[str]], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}
"""`tokenizer.ggml.model` -> function that builds such a tokenizer from the metadata and the set of added tokens."""
