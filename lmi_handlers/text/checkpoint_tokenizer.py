"""Loads the tokenizer of a checkpoint with transformers, converted to what the `tokenizers` library runs.

Most checkpoints have a tokenizer.json, or a format that transformers converts. Two have neither: Mistral's own files,
and tokenizers that are only Python code around tiktoken (Qwen 1, Kimi).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.install import install_command
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.core.plugins import importing
from lmi_handlers.text.byte_level import byte_characters

TOKENIZER_FILE = "tokenizer.json"

_SENTENCEPIECE = "tokenizer.model"
_TEKKEN = "tekken.json"
_SAMPLE = (
    "Hello, wörld!  12345\n\n\tdef f(x):\r\n  return 'it''s' + x  # CamelCase, ALLCAPS\n"
    "日本語と漢字、한국어 \N{PARTY POPPER}\N{FAMILY}\N{EMOJI MODIFIER FITZPATRICK TYPE-4} مرحبا "
)
_MAX_SAMPLED = 50
_MAX_REASON = 500
"""Characters of a library's error, which may have lines of lists, or a token of any length."""


def load_tokenizer(
    model_dir: Path, *, trust_remote_code: bool = False, gguf_file: str | None = None
) -> tuple[Any, Tokenizer]:
    """Return transformers' tokenizer of the model in `model_dir`, and one of the `tokenizers` library for it.

    Raises what `load_library_tokenizer` raises, and `ConfigError` if the tokenizer cannot be converted.
    """
    tokenizer = load_library_tokenizer(model_dir, trust_remote_code=trust_remote_code, gguf_file=gguf_file)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return tokenizer, backend if isinstance(backend, Tokenizer) else _from_python(tokenizer, model_dir)


def load_library_tokenizer(model_dir: Path, *, trust_remote_code: bool = False, gguf_file: str | None = None) -> Any:
    """Return transformers' tokenizer of the model in `model_dir`, which may be Python code.

    `gguf_file` names the file in `model_dir` to read the tokenizer from if there is no other. Raises `ConfigError` if
    there is none that can be read, or `LoadFailed` if a retry may help.
    """
    try:
        with importing():
            import transformers  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"loading a tokenizer needs more packages: {install_command('lmi-handlers[transformers]')} ({error})"
        ) from error
    try:
        return _load(model_dir, trust_remote_code, {} if gguf_file is None else {"gguf_file": gguf_file})
    except Exception as error:  # a model may bring its own code, which may raise anything
        reason = " ".join(str(error)[:_MAX_REASON].split()) or type(error).__name__
        if not trust_remote_code and (code := sorted(model_dir.glob("tokenization_*.py"))):
            reason = f"{code[0].name} runs only with option.trust_remote_code=true ({reason})"
        raise load_failure(ConfigError(f"no tokenizer can be loaded from {model_dir}: {reason}"), error) from error


def _load(model_dir: Path, trust_remote_code: bool, arguments: dict[str, Any]) -> Any:
    with importing():
        from transformers import AutoTokenizer

    has_file = any((model_dir / name).exists() for name in (TOKENIZER_FILE, _SENTENCEPIECE)) or "gguf_file" in arguments
    if (tekken := model_dir / _TEKKEN).exists():
        if not has_file:
            from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

            return _with_bos(convert_tekken_tokenizer(str(tekken)))
        # With mistral_common installed, as vLLM does, transformers would return a wrapper of that library. Older
        # tokenizer.json files beside a tekken.json split words differently from it.
        arguments |= {"mistral_format": False, "fix_mistral_regex": True}
    elif not has_file and (versions := sorted(model_dir.glob(f"{_SENTENCEPIECE}.v*"))):
        return _with_bos(_from_sentencepiece(versions[-1]))
    return AutoTokenizer.from_pretrained(model_dir, trust_remote_code=trust_remote_code, **arguments)


def _from_sentencepiece(file: Path) -> Any:
    """Read a file of Mistral's, such as tokenizer.model.v3, which transformers expects under another name."""
    from transformers import LlamaTokenizer

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _SENTENCEPIECE).symlink_to(file.resolve())
        return LlamaTokenizer.from_pretrained(folder)


def _with_bos(tokenizer: Any) -> Any:
    """Add what Mistral's own library does: a text begins with the beginning-of-sequence token."""
    bos, token_id = tokenizer.bos_token, tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, token_id)]
    )
    return tokenizer


def _from_python(tokenizer: Any, model_dir: Path) -> Tokenizer:
    """Convert a tokenizer that is Python code around tiktoken. Raises `ConfigError` unless both give the same ids."""
    subject = f"the tokenizer in {model_dir} ({type(tokenizer).__name__}) cannot be converted to {TOKENIZER_FILE}"
    encoding = next(filter(_is_tiktoken, vars(tokenizer).values()), None)
    if encoding is None:
        raise ConfigError(subject)
    backend = _from_tiktoken(encoding)
    sample = _SAMPLE + _SAMPLE.join([*encoding._special_tokens][:_MAX_SAMPLED])  # noqa: SLF001 (see _from_tiktoken)
    try:
        expected = list(tokenizer.encode(sample))
    except Exception as error:  # the model's own code, which may raise anything
        raise ConfigError(f"{subject}: its code raises {type(error).__name__}: {error}") from error
    if backend.encode(sample).ids != expected:
        raise ConfigError(f"{subject}: its code does not encode a text as its vocabulary does")
    return backend


def _is_tiktoken(value: Any) -> bool:
    return (type(value).__module__, type(value).__name__) == ("tiktoken.core", "Encoding")


def _from_tiktoken(encoding: Any) -> Tokenizer:
    """Return a byte-level BPE with the same ids. tiktoken has no public names for what its `Encoding` was made of."""
    ranks: dict[bytes, int] = encoding._mergeable_ranks  # noqa: SLF001
    special: dict[str, int] = encoding._special_tokens  # noqa: SLF001
    characters = byte_characters()
    text = {token: "".join(characters[byte] for byte in token) for token in ranks}
    # A token may be made of several pairs, and any of them may be in a text. A merge comes in the order of its token.
    merges = [
        (rank, ranks[token[:cut]], ranks[token[cut:]], text[token[:cut]], text[token[cut:]])
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    vocabulary = {text[token]: rank for token, rank in ranks.items()} | special
    backend = Tokenizer(models.BPE(vocabulary, [pair[3:] for pair in sorted(merges)], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(encoding._pat_str), behavior="isolated"),  # noqa: SLF001
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return backend
