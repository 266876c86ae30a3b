"""Computes what a Whisper model hears: the pieces of sounds, with languages, segments and words.

Long sounds are cut into pieces of at most 30 s, where it is quiet. Pieces share forward passes, also those of several
sounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE, _combine_tokens_into_words

from backends.sounds import Samples
from lmi_handlers.core.errors import ClientDisconnected, ConfigError, InvalidRequest

PIECE_SECONDS = 30
"""Length of the models' input."""

MAX_PIECES = 8
"""Pieces of one forward pass. Each has the encoder's states of 30 s."""

COLDEST = 0.01
"""Lower temperatures are 0. Divided by them, scores may be infinite, which ends the use of a GPU in this process."""

_SEARCHED = 2.0
"""Seconds at the end of a piece in which the quietest place is looked for."""

LANGUAGES = {code: name for name, code in reversed(TO_LANGUAGE_CODE.items())}
"""Names by code; of several names, the first."""

_WINDOW = 0.1
_SECONDS_PER_TIMESTAMP = 0.02


class Wanted(NamedTuple):
    """The parts of a request that change what the model computes. `language` is None if it is to be found."""

    language: str | None = None
    task: str = "transcribe"
    temperature: float = 0.0
    max_new_tokens: int | None = None
    prompt: str | None = None
    timestamps: bool = False
    words: bool = False


class Segment(NamedTuple):
    """A part of a piece between two timestamps, in seconds from the beginning of the sound."""

    text: str
    start: float
    end: float
    tokens: list[int]


class Word(NamedTuple):
    """A word, with its spaces, and its time in seconds from the beginning of the sound."""

    text: str
    start: float
    end: float


class SpokenPiece(NamedTuple):
    """What is said in a piece of a sound, which begins at `start` seconds. `language` is a token such as `<|de|>`."""

    start: float
    language: str | None
    segments: list[Segment]
    words: list[Word]
    avg_logprob: float
    no_speech_prob: float

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


class _Part(NamedTuple):
    """A piece of the sound with this number."""

    sound: int
    start: float
    samples: Samples


class _GenerationConfig(msgspec.Struct, frozen=True):
    """The fields of generation_config.json that transcription relies on, with OpenAI's types."""

    decoder_start_token_id: int
    eos_token_id: int
    no_timestamps_token_id: int
    is_multilingual: bool | None = None
    lang_to_id: dict[str, int] | None = None
    task_to_id: dict[str, int] | None = None
    alignment_heads: list[tuple[int, int]] | None = None


def check_generation_config(model: Any) -> None:
    """Raise `ConfigError` unless generation_config.json has all that transcription needs, and only tokens of this model.

    Distilled models often have the `alignment_heads` of the larger one that they are from: see `Whisper.times_words`.
    """
    try:
        found = msgspec.convert(model.generation_config.to_dict(), _GenerationConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"option.model_id: generation_config.json: {error}") from error
    token_ids = [(name, getattr(found, name)) for name in found.__struct_fields__ if name.endswith("_token_id")]
    for name in ("lang_to_id", "task_to_id"):
        token_ids += [(f"{name}.{token}", token_id) for token, token_id in (getattr(found, name) or {}).items()]
    for name, token_id in token_ids:
        if not 0 <= token_id < (size := model.config.vocab_size):
            raise ConfigError(
                f"option.model_id: generation_config.json: {name} is {token_id}, but the model has {size} tokens"
            )


class Whisper:
    """A loaded model with its preprocessor and tokenizer. `languages` has none if the model only knows English."""

    def __init__(self, model: Any, extractor: Any, tokenizer: Any) -> None:
        self.rate = int(extractor.sampling_rate)
        self._model = model
        self._extractor = extractor
        self._tokenizer = tokenizer
        self._generation = model.generation_config
        self.languages: dict[str, int] = getattr(self._generation, "lang_to_id", None) or {}
        if not getattr(self._generation, "is_multilingual", True):
            self.languages = {}

    @property
    def times_words(self) -> bool:
        """Tell whether the model can say when words are spoken: its decoder must have all of the `alignment_heads`."""
        layers, heads = self._model.config.decoder_layers, self._model.config.decoder_attention_heads
        named = getattr(self._generation, "alignment_heads", None) or ()
        return bool(named) and all(0 <= layer < layers and 0 <= head < heads for layer, head in named)

    def hear(
        self, sounds: Sequence[Samples], wanted: Wanted, rows: int, is_unwanted: Callable[[], bool]
    ) -> Iterator[tuple[int, SpokenPiece]]:
        """Yield the number of the sound with each of its pieces, in order, computed `rows` at a time.

        Raises `ClientDisconnected` once `is_unwanted()` is true.
        """
        parts = [
            _Part(number, start / self.rate, samples)
            for number, sound in enumerate(sounds)
            for start, samples in split(sound, self.rate)
        ]
        languages: dict[int, str | None] = {}
        for place in range(0, len(parts), rows):
            chosen = parts[place : place + rows]
            for part, piece in zip(chosen, self._pass(chosen, wanted, languages, is_unwanted), strict=True):
                yield part.sound, piece

    @torch.inference_mode()
    def _pass(
        self,
        parts: Sequence[_Part],
        wanted: Wanted,
        languages: dict[int, str | None],
        is_unwanted: Callable[[], bool],
    ) -> list[SpokenPiece]:
        """Return the pieces of one forward pass. `languages` has those of the sounds, found in their first pieces."""
        if is_unwanted():
            raise ClientDisconnected
        features = self._extractor(
            [part.samples for part in parts], sampling_rate=self.rate, return_tensors="pt", return_attention_mask=True
        ).to(self._model.device)
        inputs = features["input_features"].to(self._model.dtype)
        states = self._model.get_encoder()(inputs)
        silence = self._listen(parts, states, wanted.language, languages)
        prompt = self.prompt_ids(wanted.prompt)
        recorder = _LogProbs()
        found = self._model.generate(
            inputs,
            encoder_outputs=states,
            attention_mask=features["attention_mask"],
            return_timestamps=wanted.timestamps,
            return_token_timestamps=wanted.words or None,
            prompt_ids=prompt,
            temperature=wanted.temperature,
            logits_processor=LogitsProcessorList([recorder]),
            stopping_criteria=StoppingCriteriaList([_Unwanted(is_unwanted)]),
            return_dict_in_generate=True,
            force_unique_generate_call=True,
            **({"max_new_tokens": self._room(wanted.max_new_tokens, prompt)} if wanted.max_new_tokens else {}),
            **({"language": [languages[part.sound] for part in parts], "task": wanted.task} if self.languages else {}),
        )
        if is_unwanted():
            raise ClientDisconnected
        logprobs = recorder.means(found["sequences"], self._generation.eos_token_id)
        times = found["token_timestamps"].tolist() if wanted.words else None
        pieces = []
        for row, part in enumerate(parts):
            ids = found["sequences"][row, recorder.begin :].tolist()
            language = languages[part.sound]
            segments = self._segments(ids, part)
            words = [] if times is None else self._words(ids, times[row][recorder.begin :], part, language)
            pieces.append(SpokenPiece(part.start, language, segments, words, logprobs[row], silence[row]))
        return pieces

    def _listen(
        self, parts: Sequence[_Part], states: Any, language: str | None, languages: dict[int, str | None]
    ) -> list[float]:
        """Return the probability of silence for each piece, and add the languages of sounds that begin here."""
        first = torch.full((len(parts), 1), self._generation.decoder_start_token_id, device=self._model.device)
        scores = self._model(encoder_outputs=states, decoder_input_ids=first).logits[:, 0].float()
        for part, row in zip(parts, scores, strict=True):
            if part.sound not in languages:
                known = {token: float(row[number]) for token, number in self.languages.items()}
                heard = max(known, key=known.__getitem__, default=None)
                languages[part.sound] = self.language_token(language) if language and known else heard
        silence: list[float] = scores.softmax(-1)[:, self._generation.no_timestamps_token_id - 1].tolist()
        return silence

    def language_token(self, name: str) -> str:
        """Return the token of a language, such as `<|de|>` for "de" or "German". Raises `InvalidRequest`."""
        code = TO_LANGUAGE_CODE.get(name.lower(), name.lower())
        if (token := f"<|{code}|>") not in self.languages:
            raise InvalidRequest(f"{name[:100]!r} is not a language of this model", field="parameters.language")
        return token

    def prompt_ids(self, text: str | None) -> torch.Tensor | None:
        """Return the last tokens of a prompt, at most half of Whisper's context. Raises `InvalidRequest`."""
        if not text:
            return None
        try:
            ids: torch.Tensor = self._tokenizer.get_prompt_ids(text, return_tensors="pt")
        except ValueError as error:
            raise InvalidRequest("must not have special tokens of the model", field="parameters.prompt") from error
        most = self._model.config.max_target_positions // 2 - 1
        return torch.cat([ids[:1], ids[1:][1 - most :]]).to(self._model.device)

    def _room(self, wanted: int, prompt: torch.Tensor | None) -> int:
        """Return how many tokens fit behind the prompt and at most four special tokens."""
        used = 4 + (0 if prompt is None else len(prompt))
        return min(wanted, int(self._model.config.max_target_positions) - used)

    def _segments(self, ids: Sequence[int], part: _Part) -> list[Segment]:
        """Return what is between two timestamps each, or all as one segment if there are none."""
        begin, length = self._generation.no_timestamps_token_id + 1, len(part.samples) / self.rate
        segments: list[Segment] = []
        start, tokens = 0.0, list[int]()

        def end(time: float) -> None:
            text = self._tokenizer.decode(tokens, skip_special_tokens=True)
            segments.append(Segment(text, part.start + start, part.start + max(start, time), tokens))

        for token in takewhile(lambda token: token != self._generation.eos_token_id, ids):
            if token < begin:
                tokens.append(token)
                continue
            time = min((token - begin) * _SECONDS_PER_TIMESTAMP, length)
            if tokens:
                end(time)
            start, tokens = time, []
        if tokens:
            end(length)
        return segments

    def _words(self, ids: Sequence[int], times: Sequence[float], part: _Part, language: str | None) -> list[Word]:
        """Return the words with their times, of which `times` has one per token."""
        length = len(part.samples) / self.rate
        spoken = [place for place, token in enumerate(ids) if token < self._generation.eos_token_id]
        name = None if language is None else LANGUAGES.get(language[2:-2])
        texts, _, groups = _combine_tokens_into_words(self._tokenizer, [ids[place] for place in spoken], name)
        words = []
        for text, group in zip(texts, groups, strict=True):
            start, after = times[spoken[group[0]]], spoken[group[-1]] + 1
            end = min(times[after] if after < len(times) else length, length)
            words.append(Word(text, part.start + start, part.start + max(start, end)))
        return words


def split(samples: Samples, rate: int) -> Iterator[tuple[int, Samples]]:
    """Yield pieces of at most 30 s with their places. All but the last end in the quietest tenth of their last seconds."""
    start, longest = 0, PIECE_SECONDS * rate
    window = max(1, int(_WINDOW * rate))
    while len(samples) - start > longest:
        tail = start + longest - int(_SEARCHED * rate)
        searched = samples[tail : start + longest]
        energy = np.square(searched[: len(searched) // window * window]).reshape(-1, window).sum(axis=1)
        end = tail + int(energy.argmin()) * window + window // 2
        yield start, samples[start:end]
        start = end
    yield start, samples[start:]


class _LogProbs(LogitsProcessor):
    """Adds up the log probabilities of generated tokens. `begin` is the number of tokens before these."""

    def __init__(self) -> None:
        self.begin = 0
        self._last: torch.Tensor | None = None
        self._steps: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._last is None:
            self.begin = input_ids.shape[1]
        else:
            self._steps.append(self._last.gather(1, input_ids[:, -1:]))
        self._last = scores.float().log_softmax(-1)
        return scores

    def means(self, sequences: torch.Tensor, end: int) -> list[float]:
        """Return the mean for each sequence, with the token that ends it."""
        assert self._last is not None  # noqa: S101  there is at least one step
        ids = sequences[:, self.begin :]
        logprobs = torch.cat([*self._steps, self._last.gather(1, ids[:, -1:])], dim=1)
        is_end = ids == end
        after = (is_end.cumsum(1) - is_end.long()) > 0
        means: list[float] = (logprobs.masked_fill(after, 0.0).sum(1) / (~after).sum(1).clamp(min=1)).tolist()
        return means


class _Unwanted(StoppingCriteria):
    """Ends the generation once nobody waits for it any more."""

    def __init__(self, is_unwanted: Callable[[], bool]) -> None:
        self._is_unwanted = is_unwanted

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:  # noqa: ARG002  the library's
        return torch.full((len(input_ids),), self._is_unwanted(), device=input_ids.device, dtype=torch.bool)
