"""The folder of a model without weights, for the echo backend: a tokenizer with one token per byte."""

from __future__ import annotations

from pathlib import Path

from empty_weights import NO_TENSORS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors


def write_byte_model(directory: Path) -> None:
    """Write a model whose tokenizer prepends <s>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={text: token_id for token_id, text in enumerate(["<s>", "</s>", *alphabet])}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}'
    )
    (directory / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 258}')
    (directory / "model.safetensors").write_text(NO_TENSORS)
