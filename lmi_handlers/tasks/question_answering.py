"""Extractive question answering: finds the answer in a context. Transformers 5 has no pipeline for it any more.

Parameters, results and scores are those of transformers 4's `QuestionAnsweringPipeline` with a fast tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from msgspec import UNSET, Meta, UnsetType
from transformers import AutoModelForQuestionAnswering

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.tasks.lengths import check_characters
from lmi_handlers.tasks.loading import load_text_model
from lmi_handlers.tasks.task import Parameters, Task, by_length, passes

MAX_LENGTH = 1024
"""Tokens of a part. The search for the best spans takes their square."""

MAX_TOKENS = 1 << 18
"""Tokens of all parts of a request together, with what neighbours share."""

_DEFAULT_LENGTH = 384
_DEFAULT_STRIDE = 128
_EXCLUDED = -10_000.0
_NO_ANSWER = 1_000_000.0
_Count = Annotated[int, Meta(ge=1)]


class QuestionAnsweringParameters(Parameters, frozen=True):
    """Contexts longer than `max_seq_len` tokens are split into parts that share `doc_stride` tokens."""

    top_k: Annotated[int, Meta(ge=1, le=100)] = 1
    max_answer_len: _Count = 15
    max_seq_len: _Count | UnsetType = UNSET
    doc_stride: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    max_question_len: _Count | UnsetType = UNSET
    handle_impossible_answer: bool = False
    align_to_words: bool = True


class _Part(NamedTuple):
    """A question with a part of its context. `candidates` are the positions that count: the context, and the first."""

    place: int
    encoding: Any
    inputs: dict[str, list[int]]
    candidates: np.ndarray[Any, Any]


class QuestionAnswering(Task):
    """Answers `{"question": .., "context": ..}`."""

    parameters = QuestionAnsweringParameters
    unwraps = True

    def __init__(self, model: Any, tokenizer: Any) -> None:
        if not tokenizer.is_fast:
            raise ConfigError("option.task=question-answering needs a tokenizer.json")
        tokenizer.padding_side = "right"
        self._model = model
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, name: str, path: Path, properties: ServingProperties) -> Task:  # noqa: ARG003  one task
        return cls(*load_text_model(path, properties, lambda _config: AutoModelForQuestionAnswering))

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        items = inputs if isinstance(inputs, list) else [inputs]
        for item in items:
            if not (isinstance(item, dict) and item.keys() == {"question", "context"}):
                raise InvalidRequest('must be {"question": .., "context": ..} or a list of them', field="inputs")
            for name, text in item.items():
                if not isinstance(text, str) or not text.strip():
                    raise InvalidRequest("must be a text, and not empty", field=f"inputs.{name}")
        return items, items is not inputs

    def check(self, items: Sequence[dict[str, str]], parameters: QuestionAnsweringParameters) -> None:
        check_characters(text for item in items for text in item.values())
        limit = self._tokenizer.model_max_length
        length, stride = self._lengths(parameters)
        limit = min(limit, MAX_LENGTH)
        if length > limit:
            raise InvalidRequest(f"must be at most {limit}", field="parameters.max_seq_len")
        special = self._tokenizer.num_special_tokens_to_add(pair=True)
        parts = 0
        for item in items:
            question = len(self._tokenizer(item["question"], add_special_tokens=False, verbose=False)["input_ids"])
            if question + special + stride >= length:
                raise InvalidRequest(
                    f"has {question} tokens; with max_seq_len={length} and doc_stride={stride} it may have at most "
                    f"{max(0, length - stride - special - 1)}",
                    field="inputs.question",
                )
            context = len(self._tokenizer(item["context"], add_special_tokens=False, verbose=False)["input_ids"])
            parts += 1 + max(0, context - 1) // (length - question - special - stride)
        if parts * length > MAX_TOKENS:
            raise InvalidRequest(
                f"has contexts of {parts} parts of {length} tokens; all parts together may have {MAX_TOKENS}: use a "
                "smaller parameters.doc_stride, or send less",
                field="inputs.context",
            )

    def run(self, items: list[dict[str, str]], parameters: QuestionAnsweringParameters) -> list[Any]:
        parts = [part for place, item in enumerate(items) for part in self._parts(place, item, parameters)]
        answers: list[list[dict[str, Any]]] = [[] for _ in items]
        no_answer = [_NO_ANSWER] * len(items)
        logits = by_length(parts, lambda part: len(part.encoding), self._logits)
        for part, (starts, ends) in zip(parts, logits, strict=True):
            start, end = _probabilities(starts, part.candidates), _probabilities(ends, part.candidates)
            no_answer[part.place] = min(no_answer[part.place], float(start[0] * end[0]))
            start[0] = end[0] = 0.0
            context = items[part.place]["context"]
            for first, last, score in _spans(start, end, part.candidates, parameters):
                _add(answers[part.place], context, *_characters(part.encoding, first, last, parameters), score)
        if parameters.handle_impossible_answer:
            for found, score in zip(answers, no_answer, strict=True):
                found.append({"score": score, "start": 0, "end": 0, "answer": ""})
        best = [sorted(found, key=lambda answer: -answer["score"])[: parameters.top_k] for found in answers]
        return [found[0] if len(found) == 1 else found for found in best]

    def _lengths(self, parameters: QuestionAnsweringParameters) -> tuple[int, int]:
        """Return the tokens of a part, and how many of them the next part has, too."""
        length, stride = parameters.max_seq_len, parameters.doc_stride
        length = min(self._tokenizer.model_max_length, _DEFAULT_LENGTH) if length is UNSET else length
        return length, min(length // 2, _DEFAULT_STRIDE) if stride is UNSET else stride

    def _parts(self, place: int, item: dict[str, str], parameters: QuestionAnsweringParameters) -> Iterator[_Part]:
        length, stride = self._lengths(parameters)
        encoded = self._tokenizer(
            item["question"],
            item["context"],
            truncation="only_second",
            max_length=length,
            stride=stride,
            return_overflowing_tokens=True,
            verbose=False,
        )
        names = [name for name in self._tokenizer.model_input_names if name in encoded]
        for number, encoding in enumerate(encoded.encodings):
            context = np.array([sequence == 1 for sequence in encoding.sequence_ids])
            cls = np.array(encoding.ids) == self._tokenizer.cls_token_id
            yield _Part(place, encoding, {name: encoded[name][number] for name in names}, context | cls)

    def _logits(self, parts: list[_Part]) -> list[tuple[Any, Any]]:
        """Return the logits of the start and the end, one array each per part."""
        found = []
        for rows in passes(parts):
            inputs = self._tokenizer.pad(
                {name: [part.inputs[name] for part in rows] for name in rows[0].inputs}, return_tensors="pt"
            )
            with torch.inference_mode():
                output = self._model(**inputs.to(self._model.device))
            starts, ends = output.start_logits.float().cpu().numpy(), output.end_logits.float().cpu().numpy()
            sizes = [len(part.encoding) for part in rows]
            found += [(starts[row, :size], ends[row, :size]) for row, size in enumerate(sizes)]
        return found


def _probabilities(logits: Any, candidates: Any) -> Any:
    logits = np.where(candidates, logits, _EXCLUDED)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _spans(
    start: Any, end: Any, candidates: Any, parameters: QuestionAnsweringParameters
) -> Iterator[tuple[int, int, float]]:
    """Yield the most probable spans of tokens, best first."""
    count = 2 * parameters.top_k + 10 if parameters.align_to_words else parameters.top_k  # the same words, perhaps
    scores = np.tril(np.triu(np.outer(start, end)), parameters.max_answer_len - 1)
    best = np.argsort(-scores, axis=None)[:count]
    for first, last in zip(*np.unravel_index(best, scores.shape), strict=True):
        if candidates[first] and candidates[last]:
            yield int(first), int(last), float(scores[first, last])


def _characters(encoding: Any, first: int, last: int, parameters: QuestionAnsweringParameters) -> tuple[int, int]:
    """Return where the span of tokens, or of the words that they belong to, begins and ends in the context."""
    words = (encoding.token_to_word(first), encoding.token_to_word(last))
    if parameters.align_to_words and None not in words:
        return encoding.word_to_chars(words[0], 1)[0], encoding.word_to_chars(words[1], 1)[1]
    return encoding.offsets[first][0], encoding.offsets[last][1]


def _add(answers: list[dict[str, Any]], context: str, start: int, end: int, score: float) -> None:
    """Add an answer, or its score to the same answer found elsewhere in the context."""
    text = context[start:end]
    for answer in answers:
        if answer["answer"].lower() == text.lower():
            answer["score"] += score
            return
    answers.append({"score": score, "start": start, "end": end, "answer": text})
