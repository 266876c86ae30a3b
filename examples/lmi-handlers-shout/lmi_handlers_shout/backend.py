"""The backend: token ids in, token ids out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from backends.base import Backend, ModelFiles
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers_shout.declaration import DECLARATION, ShoutOptions


class ShoutBackend(Backend):
    """Answers with the prompt in capital letters and `option.shout_marks` exclamation marks.

    It needs no model, so its tokens are the bytes of the text.
    """

    def __init__(self, capabilities: Capabilities, end_id: int, marks: int) -> None:
        self._capabilities = capabilities
        self._end_id = end_id
        self._marks = marks
        self._running: dict[str, Iterator[TokenOutput]] = {}

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> ShoutBackend:
        """Called once, in the engine process. `/ping` shows what is reported until this returns."""
        report("clearing the throat")
        options = properties.options_of(ShoutOptions)
        capabilities = Capabilities(
            backend="shout",
            max_model_len=properties.max_model_len or 4096,
            max_num_seqs=properties.max_rolling_batch_size or 32,
            vocab_size=model.vocab_size,
            max_logprobs=0,
            unsupported=tuple(DECLARATION.unsupported),
            takes_cache_salt=True,  # nothing is kept from one request to the next
        )
        return cls(capabilities, end_id=model.eos_token_ids[0], marks=options.shout_marks)

    @property
    def capabilities(self) -> Capabilities:
        """The server rejects requests that this does not allow."""
        return self._capabilities

    def add_request(self, request: TokenRequest) -> None:
        """Start a sequence."""
        self._running[request.request_id] = self._answer(request)

    def abort(self, request_id: str) -> None:
        """Drop a sequence."""
        self._running.pop(request_id, None)

    def step(self) -> list[TokenOutput]:
        """Advance every running sequence by one token."""
        outputs = [next(answer) for answer in self._running.values()]
        for output in outputs:
            if output.finish_reason is not None:
                del self._running[output.request_id]
        return outputs

    def _answer(self, request: TokenRequest) -> Iterator[TokenOutput]:
        prompt, params = request.prompt.token_ids, request.sampling_params
        text = bytes(token_id for token_id in prompt if token_id < 256).upper() + b"!" * self._marks
        token_ids = itertools.cycle(text) if params.ignore_eos else [*text, self._end_id]
        room = self._capabilities.max_model_len - len(prompt)
        for number, token_id in enumerate(token_ids, 1):
            reason = None
            if token_id == self._end_id:
                reason = FinishReason.EOS_TOKEN
            elif token_id in params.stop_token_ids:
                reason = FinishReason.STOP_SEQUENCE
            elif number in (params.max_tokens, room):
                reason = FinishReason.LENGTH
            yield TokenOutput(
                request_id=request.request_id,
                token_ids=[token_id],
                logprobs=None if params.logprobs is None else [0.0],  # no other token is possible
                finish_reason=reason,
            )
