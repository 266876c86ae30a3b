r"""MindIE's formats.

They differ from TGI's: an object instead of an array, events without an index, MindIE's key order.

    document   {"details":{...},"generated_text":"am a Frenchman"}
    stream     data: {"token":{...},"generated_text":null,"details":null}\n\n

Source: MindIE's documentation of its text and streaming inference interface. Its examples are in the tests. They have
null for `logprob` and `special`, but this server sends the real values.
"""

from __future__ import annotations

from json.encoder import encode_basestring as quote  # what json.dumps uses with ensure_ascii=False

from formatters.base import Answer
from formatters.tgi.float32 import float32
from formatters.tgi.generate import TgiJsonFormatter, TgiSseFormatter
from lmi_handlers.core.outputs import Token


class MindieJsonFormatter(TgiJsonFormatter):
    """One document at the end. Unlike in events, its keys and its tokens' keys are in alphabetical order."""

    def finish(self) -> bytes:
        """Return the document."""
        sample, best = self.ranked()[0]
        details = f'"details":{self._document_details(best, sample)},' if self.request.details else ""
        return f'{{{details}"generated_text":{self.generated_text(best)}}}'.encode()

    def _document_details(self, answer: Answer, sample: int) -> str:
        prefill = ",".join(map(_prompt_token, answer.prompt_tokens))
        tokens = ",".join(map(_generated_token, answer.tokens))
        return (
            f'{{"finish_reason":{answer.reason},"generated_tokens":{len(answer.tokens)},"prefill":[{prefill}],'
            f'"seed":{self.seed(sample)},"tokens":[{tokens}]}}'
        )


class MindieSseFormatter(TgiSseFormatter):
    """One event per token. The last event also has the whole text and the details."""

    def _event(self, token: Token, index: int, complete: Answer | None) -> str:  # noqa: ARG002  events are not numbered
        text = details = "null"
        if complete is not None:
            text = self.generated_text(complete)
            if self.request.details:
                details = f"{{{self.facts(complete, 0)}}}"
        return f'data: {{"token":{self.token(token)},"generated_text":{text},"details":{details}}}\n\n'


def _prompt_token(token: Token) -> str:
    return f'{{"id":{token.id},"logprob":{float32(token.logprob)},"text":{quote(token.text)}}}'


def _generated_token(token: Token) -> str:
    special = "true" if token.special else "false"
    return f'{{"id":{token.id},"logprob":{float32(token.logprob)},"special":{special},"text":{quote(token.text)}}}'
