"""Calls output formatters that get tokens: LMI's first and second generation."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from lmi_handlers.custom_code.formatting.messages import Begin, OutputToken, Tokens
from lmi_handlers.custom_code.formatting.tokenizer import LazyTokenizer
from lmi_handlers.custom_code.request_io import RequestInput, TextGenerationOutput, TextInput, Token
from lmi_handlers.custom_code.request_io import Sequence as GeneratedSequence

_NOT_FOR_THE_ENGINE = ("output_formatter", "stream", "details")
_NO_TOKEN = OutputToken(-1, "")

FormatToken = Callable[[TextGenerationOutput, GeneratedSequence], str]


class TokenAnswer:
    """An answer being generated. `ended` tells whether all of its sequences are complete."""

    def __init__(self, begin: Begin, call: FormatToken, tokenizer: LazyTokenizer) -> None:
        """Raises whatever the unpickling of the request raises."""
        self.ended = False
        self._call = call
        self._samples = begin.samples
        self._running = [begin.samples] * len(begin.prompts)
        self._outputs = [
            TextGenerationOutput(
                begin.number,
                _request(begin, text, tokenizer),
                prompt_tokens_details=_PromptTokens(token_ids, tokenizer),
            )
            for text, token_ids in begin.prompts
        ]

    def feed(self, message: Tokens) -> bytes:
        """Call the formatter once per token, as if each were a step of the engine. Raises whatever it raises."""
        place, index = divmod(message.index, self._samples)
        output = self._outputs[place]
        if message.prompt_tokens:
            output.prompt_tokens_details = _tokens(message.prompt_tokens)
        sequence = output.sequences.get(index)
        if sequence is None:
            sequence = output.sequences[index] = GeneratedSequence()
        ends = message.finish_reason is not None
        tokens = message.tokens or ([_NO_TOKEN] if ends else [])
        pieces = []
        for position, token in enumerate(tokens, start=1):
            is_last = ends and position == len(tokens)
            _add(sequence, token, is_last=is_last)
            if is_last:
                sequence.finish_reason = message.finish_reason
                self._end(place)
            pieces.append(self._call(output, sequence))
        return "".join(pieces).encode(errors="replace")

    def _end(self, place: int) -> None:
        """Note that a sequence of a prompt is complete. The last one decides which is the best."""
        self._running[place] -= 1
        self.ended = not any(self._running)
        output = self._outputs[place]
        if not self._running[place]:
            output.finished = True
            best = max(output.sequences, key=lambda index: output.sequences[index].cumulative_log_prob)
            output.best_sequence_index = best
            output.other_sequences_indices = [index for index in sorted(output.sequences) if index != best]


def call_output(function: Callable[..., Any], result: Callable[[Any], Any]) -> FormatToken:
    """Return the call of a function of the second generation."""

    def call(output: TextGenerationOutput, _sequence: GeneratedSequence) -> str:
        return _text(function, result(function(output)))

    return call


def call_legacy(function: Callable[..., Any], result: Callable[[Any], Any]) -> FormatToken:
    """Return the call of a function of the first generation, which only sees the first sequence."""

    def call(output: TextGenerationOutput, sequence: GeneratedSequence) -> str:
        if sequence is not output.sequences[0]:
            return ""
        parameters, last = output.input.parameters, sequence.get_last_token() is not None
        details: dict[str, Any] = {}
        if parameters.get("details"):
            details = {
                "finish_reason": sequence.finish_reason,
                "tokens": output.get_tokens_as_dict(),
                "generated_tokens": len(sequence.tokens),
                "inputs": _input_text(output),
                "parameters": parameters,
                "prompt_tokens": len(output.prompt_tokens_details),
            }
        text = ""
        if last:
            text = _input_text(output) if parameters.get("return_full_text") else ""
            text += "".join([token.text for token in sequence.tokens])
        arguments = (sequence.tokens[-1], len(sequence.tokens) == 1, last, details, text, output.request_id)
        return _text(function, result(function(*arguments)))

    return call


class _PromptTokens(Sequence[Token]):
    """The tokens of a prompt, whose text is only looked up when a formatter reads it."""

    def __init__(self, token_ids: list[int], tokenizer: LazyTokenizer) -> None:
        self._token_ids = token_ids
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._token_ids)

    @overload
    def __getitem__(self, place: int) -> Token: ...

    @overload
    def __getitem__(self, place: slice) -> list[Token]: ...

    def __getitem__(self, place: int | slice) -> Token | list[Token]:
        if isinstance(place, slice):
            return [self._token(token_id) for token_id in self._token_ids[place]]
        return self._token(self._token_ids[place])

    def _token(self, token_id: int) -> Token:
        return Token(token_id, self._tokenizer.decode([token_id]))


def _request(begin: Begin, text: str, tokenizer: LazyTokenizer) -> RequestInput:
    """Return the request as its output formatter sees it: what the input formatter has returned, or what LMI would."""
    if begin.context:
        request: RequestInput = pickle.loads(begin.context)  # noqa: S301  this process has pickled it
        if len(begin.prompts) > 1:
            request = copy.copy(request)
            request.input_text = text  # type: ignore[attr-defined]  # of a TextInput
    else:
        request = TextInput(parameters=json.loads(begin.parameters), input_text=text, adapters=begin.adapter or None)
    request.request_id = begin.number
    request.client_request_id = begin.request_id
    request.tgi_compat = begin.tgi_compat
    request.tokenizer = tokenizer  # type: ignore[attr-defined]  # as above
    if not request.server_parameters:
        kept = request.parameters.items()
        request.server_parameters = {name: value for name, value in kept if name not in _NOT_FOR_THE_ENGINE}
    return request


def _input_text(output: TextGenerationOutput) -> str:
    return str(getattr(output.input, "input_text", ""))


def _add(sequence: GeneratedSequence, token: OutputToken, *, is_last: bool) -> None:
    sequence.set_next_token(_token(token), is_last)
    sequence.cumulative_log_prob += token.logprob or 0.0
    if token.top:
        sequence.set_next_top_tokens(_tokens(token.top))


def _token(token: OutputToken) -> Token:
    return Token(token.id, token.text, token.logprob, token.special or None)


def _tokens(tokens: Iterable[OutputToken]) -> list[Token]:
    return [_token(token) for token in tokens]


def _text(function: Callable[..., Any], value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{function.__name__} returned {type(value).__name__}: it must return text, a str")
