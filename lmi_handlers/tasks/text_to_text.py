"""Text to text with an encoder and a decoder: summaries, translations. Transformers 5 has no pipelines for them any more.

Bodies and answers are those of transformers 4's pipelines; the library's `generate` does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import UNSET, Meta, UnsetType
from transformers import AutoModelForSeq2SeqLM

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.tasks.lengths import check_characters, check_tokens, read_texts
from lmi_handlers.tasks.loading import load_text_model
from lmi_handlers.tasks.task import Parameters, Task, by_length, passes

DEFAULT_NEW_TOKENS = 256
"""As in transformers 4's pipelines, unless the model's generation_config.json sets a length."""

MAX_NEW_TOKENS = 4096
MAX_BEAMS = 16
"""Beams of a text, and texts generated for one text."""

_KEYS = {"summarization": "summary_text", "text2text-generation": "generated_text"}
_Tokens = Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)]
_Minimum = Annotated[int, Meta(ge=0, le=MAX_NEW_TOKENS)]
_Beams = Annotated[int, Meta(ge=1, le=MAX_BEAMS)]
_Probability = Annotated[float, Meta(gt=0, le=1)]
_Language = Annotated[str, Meta(max_length=100)]


class GenerateParameters(Parameters, frozen=True):
    """Arguments of `generate`."""

    max_new_tokens: _Tokens | UnsetType = UNSET
    max_length: _Tokens | UnsetType = UNSET
    min_new_tokens: _Minimum | UnsetType = UNSET
    min_length: _Minimum | UnsetType = UNSET
    num_beams: _Beams | UnsetType = UNSET
    num_return_sequences: _Beams | UnsetType = UNSET
    early_stopping: bool | UnsetType = UNSET
    length_penalty: Annotated[float, Meta(ge=-100, le=100)] | UnsetType = UNSET
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | UnsetType = UNSET
    no_repeat_ngram_size: Annotated[int, Meta(ge=0, le=100)] | UnsetType = UNSET
    do_sample: bool | UnsetType = UNSET
    temperature: Annotated[float, Meta(gt=0, le=100)] | UnsetType = UNSET
    top_k: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    top_p: _Probability | UnsetType = UNSET
    typical_p: _Probability | UnsetType = UNSET


class TextToTextParameters(GenerateParameters, frozen=True):
    """More arguments of the pipelines. `generate_parameters` is how huggingface_hub sends those of `generate`."""

    truncation: bool | UnsetType = UNSET
    clean_up_tokenization_spaces: bool | UnsetType = UNSET
    src_lang: _Language | UnsetType = UNSET
    tgt_lang: _Language | UnsetType = UNSET
    generate_parameters: GenerateParameters | UnsetType = UNSET

    def generating(self) -> dict[str, Any]:
        """Return the arguments of `generate`."""
        nested = self.generate_parameters.given() if isinstance(self.generate_parameters, GenerateParameters) else {}
        return {
            name: value for name, value in self.given().items() if name in GenerateParameters.__struct_fields__
        } | nested


class TextToText(Task):
    """Generates a text for each text."""

    parameters = TextToTextParameters

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._src_lang = getattr(tokenizer, "src_lang", None)
        self._key = _KEYS.get(name, "translation_text")
        specific = (getattr(model.config, "task_specific_params", None) or {}).get(name) or {}
        self._prefix: str = specific.get("prefix") or getattr(model.config, "prefix", None) or ""
        allowed = GenerateParameters.__struct_fields__
        self._defaults = {argument: value for argument, value in specific.items() if argument in allowed}
        positions = getattr(model.config, "max_position_embeddings", None) or MAX_NEW_TOKENS
        self._max_new_tokens = min(MAX_NEW_TOKENS, positions - 1)  # one is for the token that starts the text
        config = model.generation_config
        if config.max_new_tokens is None and config.max_length in (None, 20):  # the library's own default
            self._defaults.setdefault("max_new_tokens", min(DEFAULT_NEW_TOKENS, self._max_new_tokens))

    @classmethod
    def load(cls, name: str, path: Path, properties: ServingProperties) -> Task:
        return cls(name, *load_text_model(path, properties, lambda _config: AutoModelForSeq2SeqLM))

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        return read_texts(inputs)

    def check(self, items: Sequence[str], parameters: TextToTextParameters) -> None:
        check_characters(items)
        if parameters.truncation is not True:
            check_tokens(self._tokenizer, [(self._prefix + text, None) for text in items])
        self._target(parameters)
        given = parameters.generating()
        for name in ("max_new_tokens", "max_length"):
            if given.get(name, 0) > self._max_new_tokens:
                raise InvalidRequest(f"must be at most {self._max_new_tokens}", field=f"parameters.{name}")
        sequences = given.get("num_return_sequences", 1)
        if sequences > given.get("num_beams", 1) and not given.get("do_sample"):
            raise InvalidRequest(
                "must be at most num_beams unless do_sample is true", field="parameters.num_return_sequences"
            )

    def run(self, items: list[str], parameters: TextToTextParameters) -> list[Any]:
        given = parameters.generating()
        arguments = self._defaults | given
        if "max_length" in given and "max_new_tokens" not in given:
            arguments.pop("max_new_tokens", None)
        if (target := self._target(parameters)) is not None:
            arguments["forced_bos_token_id"] = target
        if self._src_lang is not None:  # what an earlier request has set must not stay
            self._tokenizer.src_lang = self._src_lang if parameters.src_lang is UNSET else parameters.src_lang
        clean = parameters.clean_up_tokenization_spaces is True

        def compute(texts: list[str]) -> list[Any]:
            return [result for rows in passes(texts) for result in self._generate(rows, arguments, clean=clean)]

        return by_length(items, len, compute)

    def _generate(self, texts: Sequence[str], arguments: dict[str, Any], *, clean: bool) -> list[Any]:
        encoded = self._tokenizer(
            [self._prefix + text for text in texts], padding=True, truncation=True, return_tensors="pt"
        ).to(self._model.device)
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask") if name in encoded}
        with torch.inference_mode():
            generated = self._model.generate(**inputs, **arguments)
        decoded = self._tokenizer.batch_decode(generated, skip_special_tokens=True, clean_up_tokenization_spaces=clean)
        each = len(decoded) // len(texts)
        results = [{self._key: text} for text in decoded]
        return results if each == 1 else [results[start : start + each] for start in range(0, len(results), each)]

    def _target(self, parameters: TextToTextParameters) -> int | None:
        """Return the token that starts a text in the target language. Raises `InvalidRequest` for unknown languages."""
        for name in ("src_lang", "tgt_lang"):
            language = getattr(parameters, name)
            if language is UNSET:
                continue
            if not hasattr(self._tokenizer, "src_lang"):
                raise InvalidRequest("this model translates between fixed languages", field=f"parameters.{name}")
            token = self._language_token(language)
            if token is None:
                raise InvalidRequest("is not a language of this model", field=f"parameters.{name}")
            if name == "tgt_lang":
                return token
        return None

    def _language_token(self, language: str) -> int | None:
        tokens = {language, f"__{language}__"}  # NLLB and mBART, M2M100
        vocabulary = self._tokenizer.get_added_vocab()
        return next((vocabulary[token] for token in tokens if token in vocabulary), None)
