"""Small models for tasks, with random weights in float32, and checkpoints of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

MAX_LEN = 64
WORDS = [
    *("the", "a", "cat", "dog", "sat", "on", "mat", "in", "hat", "paris", "is"),
    *("capital", "of", "france", "berlin", "germany", "who", "what", "where", "when", "good", "bad"),
    *("film", "very", "not", "this", "example", "about", "sport", "news", "he", "she", "it"),
    *("lives", "works", "at", "big", "small", "house", ".", ",", "?", "!"),
]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
VOCABULARY = [
    *SPECIAL,
    *WORDS,
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    *"bcdefghijklmnopqrstuvwxyz",
]

BERT = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.5,  # large enough that the words decide
    "pad_token_id": 0,
}
LABELS = {"id2label": {0: "A", 1: "B", 2: "C"}, "label2id": {"A": 0, "B": 1, "C": 2}}
ENTAILMENT = {
    "id2label": {0: "contradiction", 1: "neutral", 2: "entailment"},
    "label2id": {"contradiction": 0, "neutral": 1, "entailment": 2},
}
ENTITIES = {
    "id2label": {0: "O", 1: "B-LOC", 2: "I-LOC", 3: "B-PER"},
    "label2id": {"O": 0, "B-LOC": 1, "I-LOC": 2, "B-PER": 3},
}
_GENERATES = {
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "vocab_size": len(VOCABULARY),
    "init_std": 0.5,
}
_BART = {
    **_GENERATES,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": MAX_LEN,
    "forced_eos_token_id": None,
}
_T5 = {**_GENERATES, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "initializer_factor": 4.0}
_VIT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.5,
}
_WAV2VEC2 = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
    "initializer_range": 0.5,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertForSequenceClassification": ("BertConfig", BERT | LABELS),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {"vocab_size": len(VOCABULARY), "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
        | {"max_position_embeddings": MAX_LEN, "initializer_range": 0.5, **ENTAILMENT},
    ),
    "RobertaForSequenceClassification": ("RobertaConfig", BERT | LABELS | {"pad_token_id": 0}),
    "BertForTokenClassification": ("BertConfig", BERT | ENTITIES),
    "BertForQuestionAnswering": ("BertConfig", BERT),
    "BertForMaskedLM": ("BertConfig", BERT),
    "BertModel": ("BertConfig", BERT),
    "BartForConditionalGeneration": ("BartConfig", _BART),
    "MarianMTModel": ("MarianConfig", _BART),
    "T5ForConditionalGeneration": ("T5Config", _T5),
    "ViTForImageClassification": ("ViTConfig", _VIT | LABELS),
    "Wav2Vec2ForSequenceClassification": ("Wav2Vec2Config", _WAV2VEC2 | LABELS),
    "HubertForSequenceClassification": ("HubertConfig", _WAV2VEC2 | LABELS),
}


def save_task_model(name: str, path: Path, **changes: Any) -> Path:
    """Write a checkpoint of the class `name`, with what it needs to read its inputs. `changes` are of its configuration."""
    config_class, options = MODELS[name]
    config = getattr(transformers, config_class)(**(options | changes))
    torch.manual_seed(11)
    model = getattr(transformers, name)(config).eval()
    model.save_pretrained(path)
    if name.startswith("ViT"):
        size = {"height": 32, "width": 32}
        transformers.ViTImageProcessor(size=size).save_pretrained(path)
    elif name.startswith(("Wav2Vec2", "Hubert")):
        extractor: Any = transformers.Wav2Vec2FeatureExtractor
        extractor(return_attention_mask=False).save_pretrained(path)
    else:
        tokenizer().save_pretrained(path)
    return path


def tokenizer() -> Any:
    """A tokenizer of words, and of letters for other words."""
    vocabulary = {text: number for number, text in enumerate(dict.fromkeys(VOCABULARY))}
    wordpiece = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    wordpiece.normalizer = normalizers.Lowercase()
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wordpiece.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = {
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
    }
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_object=wordpiece, **names)
