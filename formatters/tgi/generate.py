r"""TGI's formats: compact JSON in TGI's key order, with logprobs written as 32-bit floats.

    document   {"generated_text":"Deep Learning is","details":{...}}
    array      [{"generated_text":"Deep Learning is","details":{...}}]
    stream     data: {"index":1,"token":{...},"generated_text":null,"details":null}\n\n

Sources: responses of the text-generation-inference 3.3 router (tests/data/tgi has exact copies) and its OpenAPI
document.
"""

from __future__ import annotations

from json.encoder import encode_basestring as quote  # what json.dumps uses with ensure_ascii=False

from formatters.base import Answer, Formatter, json_array
from formatters.tgi.errors import error_document
from formatters.tgi.float32 import float32
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TextDelta, Token
from lmi_handlers.core.request import GenerationRequest


class TgiFormatter(Formatter):
    """Shared by TGI's formats: the token object, the seed, and the text so far."""

    def __init__(self, request: GenerationRequest, prompt_tokens: tuple[int, ...]) -> None:
        super().__init__(request, prompt_tokens)
        self._answers = [Answer(request.prompts[0]) for _ in range(request.sampling_params.n)]

    @staticmethod
    def token(token: Token) -> str:
        """Render one token object."""
        special = "true" if token.special else "false"
        return f'{{"id":{token.id},"text":{quote(token.text)},"logprob":{float32(token.logprob)},"special":{special}}}'

    def top_tokens(self, token: Token) -> str:
        """Render the most probable tokens at this token's position."""
        return json_array(map(self.token, token.top[: self.request.top_n_tokens]))

    def generated_text(self, answer: Answer) -> str:
        """Render the answer's text as a JSON string. `return_full_text` puts the whole prompt in front."""
        return quote(answer.prompt + answer.text if self.request.return_full_text else answer.text)

    def facts(self, answer: Answer, sample: int) -> str:
        """Render the fields at the start of all details.

        `sample` is the index of the answer among the `best_of` answers.
        """
        return f'"finish_reason":{answer.reason},"generated_tokens":{len(answer.tokens)},"seed":{self.seed(sample)}'

    def seed(self, sample: int) -> str:
        """Render the seed of answer `sample`."""
        seed = self.request.sampling_params.for_sample(sample).seed
        return "null" if seed is None else str(seed)


class TgiJsonFormatter(TgiFormatter):
    """`/generate`: one document at the end. With `best_of`, the answer with the highest mean logprob comes first."""

    content_type = "application/json"
    streams = False

    def feed(self, delta: TextDelta) -> bytes:
        """Store the delta."""
        self._answers[delta.index].feed(delta)
        return b""

    def ranked(self) -> list[tuple[int, Answer]]:
        """Return the answers with their `best_of` index, the highest mean logprob first."""
        return sorted(enumerate(self._answers), key=lambda item: item[1].mean_logprob, reverse=True)

    def finish(self) -> bytes:
        """Return the document."""
        (sample, best), *others = self.ranked()
        text = f'"generated_text":{self.generated_text(best)}'
        if not self.request.details:
            return f"{{{text}}}".encode()
        sequences = ""
        if others:
            listed = [
                f'{{"generated_text":{self.generated_text(answer)},{self._details(answer, place)}{self._top(answer)}}}'
                for place, answer in others
            ]
            sequences = f',"best_of_sequences":{json_array(listed)}'
        return f'{{{text},"details":{{{self._details(best, sample)}{sequences}{self._top(best)}}}}}'.encode()

    def _details(self, answer: Answer, sample: int) -> str:
        prefill = json_array(
            f'{{"id":{token.id},"text":{quote(token.text)},"logprob":{float32(token.logprob)}}}'
            for token in answer.prompt_tokens
        )
        tokens = json_array(map(self.token, answer.tokens))
        return f'{self.facts(answer, sample)},"prefill":{prefill},"tokens":{tokens}'

    def _top(self, answer: Answer) -> str:
        if not self.request.top_n_tokens:
            return ""
        return f',"top_tokens":{json_array(map(self.top_tokens, answer.tokens))}'


class TgiArrayFormatter(TgiJsonFormatter):
    """`/` and `/invocations`: the same document inside an array."""

    def finish(self) -> bytes:
        """Return the array."""
        return b"[" + super().finish() + b"]"


class TgiSseFormatter(TgiFormatter):
    """One event per token. The last event also has the whole text and the details."""

    content_type = "text/event-stream"
    streams = True

    def feed(self, delta: TextDelta) -> bytes:
        """Return one event per new token."""
        answer = self._answers[0]
        index = len(answer.tokens)
        answer.feed(delta)
        tokens = delta.tokens
        ends = delta.finish_reason is not None
        if ends and not tokens:
            tokens = (_NO_TOKEN,)  # TGI's clients need a token in every event, even if the text ended without one
        last = len(tokens) - 1
        return "".join(
            self._event(token, index + place, answer if ends and place == last + 1 else None)
            for place, token in enumerate(tokens, 1)
        ).encode()

    def finish(self) -> bytes:
        """Return nothing: the last token's event ends the stream."""
        return b""

    def error(self, error: LMIError) -> bytes:
        """Return the error object as the last event."""
        return b"data: " + error_document(error) + b"\n\n"

    def _event(self, token: Token, index: int, complete: Answer | None) -> str:
        top = f'"top_tokens":{self.top_tokens(token)},' if self.request.top_n_tokens else ""
        text = details = "null"
        if complete is not None:
            text = self.generated_text(complete)
            if self.request.details:
                details = f'{{{self.facts(complete, 0)},"input_length":{self.prompt_tokens[0]}}}'
        return f'data: {{"index":{index},"token":{self.token(token)},{top}"generated_text":{text},"details":{details}}}\n\n'


_NO_TOKEN = Token(id=0, text="", logprob=0.0, special=True)
