"""Compares the vocabularies of two tokenizers: whether token ids mean the same to both."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.text.checkpoint_tokenizer import TOKENIZER_FILE


def difference(one: Path, other: Path) -> str:
    """Return a token id that means something else in the other folder's tokenizer.json, in a sentence, or "".

    One of the vocabularies may have more tokens than the other. Raises `ConfigError` if a file cannot be read.
    """
    tokens, others = _tokens(one), _tokens(other)
    shared = tokens.keys() & others.keys()
    for token_id in sorted(shared):
        if tokens[token_id] != others[token_id]:
            return f"token {token_id} is {_shown(tokens[token_id])} for the model and {_shown(others[token_id])} for the shadow"
    if 2 * len(shared) < max(len(tokens), len(others)):
        return f"the model has {len(tokens)} tokens and the shadow {len(others)}"
    return ""


def _tokens(directory: Path) -> dict[int, str]:
    path = directory / TOKENIZER_FILE
    try:
        vocabulary = Tokenizer.from_file(str(path)).get_vocab()
    except Exception as error:  # tokenizers raises nothing more specific
        raise ConfigError(f"{path} cannot be read: {str(error)[:_MAX_REASON]}") from error
    return {token_id: token for token, token_id in vocabulary.items()}


def _shown(token: str) -> str:
    return repr(token[:_MAX_SHOWN])


_MAX_REASON = 500
_MAX_SHOWN = 50
