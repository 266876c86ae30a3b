"""The tasks that are served beside generation and embeddings, and which of them a model has."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError

SPEECH = "automatic-speech-recognition"

TASKS = (
    "text-classification",
    "sentiment-analysis",
    "token-classification",
    "ner",
    "zero-shot-classification",
    "question-answering",
    "fill-mask",
    "summarization",
    "translation",
    "translation_*_to_*",
    "text2text-generation",
    "feature-extraction",
    "sentence-similarity",
    "image-classification",
    "audio-classification",
    SPEECH,
)
"""Values of `option.task`, under the names of the transformers library. A `*` stands for a language."""

_ENDINGS = {
    "TapasForQuestionAnswering": None,  # of tables
    "ForQuestionAnswering": "question-answering",
    "ForTokenClassification": "token-classification",
    "ForSequenceClassification": "text-classification",
    "ForMaskedLM": "fill-mask",
    "ForImageClassification": "image-classification",
    "ForAudioClassification": "audio-classification",
    "WhisperForConditionalGeneration": SPEECH,
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "text2text-generation",
    "EncoderDecoderModel": "text2text-generation",
    "T5WithLMHeadModel": "text2text-generation",
}
"""Ending of the architecture's name -> task, as in LMI, with the tasks for images and audio. The first one counts."""

_AUDIO = {
    *("data2vec-audio", "hubert", "sew", "sew-d", "unispeech", "unispeech-sat", "wav2vec2", "wav2vec2-bert"),
    *("wav2vec2-conformer", "wavlm"),
}
"""Model types whose `*ForSequenceClassification` classifies audio."""

_TEXT_TO_TEXT = {
    *(
        "bart",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "encoder-decoder",
        "fsmt",
        "led",
        "longt5",
        "m2m_100",
    ),
    *("marian", "mbart", "mt5", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "prophetnet"),
    *("switch_transformers", "t5", "umt5", "xlm-prophetnet"),
}
"""Model types with an encoder and a decoder for text. `*ForConditionalGeneration` is also the name of image models."""


def find_task(properties: ServingProperties, config_file: Path | None, backend: str) -> tuple[str, str] | None:
    """Return the task and where its name comes from, or None if an engine generates or embeds.

    `config_file` is the model's config.json, if it has one here. `backend` is the one that the options ask for, or
    "auto". Raises `ConfigError` if the options ask for a task and for a backend that does not have it.
    """
    own_backend = backend in ("auto", "transformers")
    if properties.task not in (None, "auto"):
        if not any(fnmatchcase(properties.task, name) for name in TASKS):
            return None
        if not own_backend:
            raise ConfigError(
                f"option.task={properties.task} needs the transformers backend, but the options ask for {backend}"
            )
        return properties.task, f"option.task={properties.task}"
    if config_file is None or not own_backend:
        return None
    config = _read(config_file)
    architectures = config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    task = task_of(name, str(config.get("model_type")))
    return None if task is None else (task, f"the model is a {name}")


def task_of(architecture: str, model_type: str) -> str | None:
    """Return the task of an architecture, or None if an engine serves it."""
    task = next((task for ending, task in _ENDINGS.items() if architecture.endswith(ending)), None)
    if task == "text-classification" and model_type in _AUDIO:
        return "audio-classification"
    if task == "text2text-generation" and model_type not in _TEXT_TO_TEXT:
        return None
    return task


def _read(config_file: Path) -> dict[str, Any]:
    """Return the configuration, or nothing if it cannot be read; loading reports why."""
    try:
        config = json.loads(config_file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
