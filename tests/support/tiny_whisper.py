"""A tiny Whisper model with random weights, whose tokens are bytes, and sounds for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken

from lmi_handlers.text.byte_level import byte_characters

LANGUAGES = ("en", "de", "fr")
RATE = 16_000
_SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
]
_TIMES = [f"<|{number * 0.02:.2f}|>" for number in range(1501)]


def save_whisper(path: Path, **changes: Any) -> Path:
    """Write a checkpoint. `changes` are of its generation_config.json, where None removes what is there."""
    tokens = tokenizer()
    ids = {token: tokens.convert_tokens_to_ids(token) for token in _SPECIAL}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    config: Any = transformers.WhisperConfig(
        vocab_size=len(tokens),
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_target_positions=64,
        init_std=0.5,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        begin_suppress_tokens=[end],
        suppress_tokens=[],
    )
    torch.manual_seed(11)
    whisper: Any = transformers.WhisperForConditionalGeneration
    model = whisper(config).eval()
    generation = {
        "_from_model_config": False,
        "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "is_multilingual": True,
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "alignment_heads": [[1, 0]],
        "max_initial_timestamp_index": 50,
        "max_length": 40,
        "begin_suppress_tokens": [end],
        "suppress_tokens": [token for token in ids.values() if token != end],
        "decoder_start_token_id": start,
    }
    for name, value in (generation | changes).items():
        if value is not None:
            setattr(model.generation_config, name, value)
    model.save_pretrained(path)
    tokens.save_pretrained(path)
    extractor: Any = transformers.WhisperFeatureExtractor
    extractor().save_pretrained(path)
    return path


def tokenizer() -> Any:
    """Whisper's tokenizer without merges: a token per byte."""
    vocabulary = {character: number for number, character in enumerate(byte_characters())}
    fast: Any = transformers.WhisperTokenizer
    made = fast(vocab=vocabulary, merges=[])
    made.add_special_tokens({"additional_special_tokens": _SPECIAL})
    made.add_tokens([AddedToken(text, special=False) for text in _TIMES])
    return made


def sound(seconds: float, seed: int = 3) -> np.ndarray[Any, Any]:
    """Noise of changing loudness, 16 bits per sample."""
    random = np.random.default_rng(seed)
    count = int(seconds * RATE)
    loudness = np.abs(np.sin(np.arange(count) / RATE * 2)) * 8000
    samples: np.ndarray[Any, Any] = (random.uniform(-1, 1, count) * loudness).astype("<i2")
    return samples
