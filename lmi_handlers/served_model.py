"""The one way of a request through a web worker: text in, token ids to the engine, tokens back, formatted bytes out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import msgspec

from formatters.base import Formatter
from lmi_handlers.beam_generation import BeamGeneration, check_beam_search
from lmi_handlers.dialects.base import Parsed, TokenLimits
from lmi_handlers.engine.client import EngineClient, EngineState, Generation
from lmi_handlers.engine.messages import EngineInfo, SequenceOutput
from lmi_handlers.engine.settings import metrics_dir
from lmi_handlers.errors import ClientDisconnected, EngineNotReady, InvalidRequest, LMIError, RequestFailed
from lmi_handlers.limits import check_adapter, check_sampling_params
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.outputs import FinishReason
from lmi_handlers.request import GenerationRequest
from lmi_handlers.text.bundle import TextBundle, load_text_bundle
from lmi_handlers.text.sequence import SequenceText
from lmi_handlers.text.tokenizer import Tokenizer
from lmi_handlers.usage import Usage

logger = logging.getLogger(__name__)


class LoadedText(msgspec.Struct, frozen=True):
    """What the engine's `Ready` gave this worker: its limits, and all that concerns the model's text."""

    info: EngineInfo
    limits: TokenLimits
    bundle: TextBundle
    tokenizer: Tokenizer


class ServedModel:
    """The model that this worker serves, wherever its engine is. Thread-safe.

    Prompts may have `max_input_tokens`, as many as the model takes where that is None.
    """

    def __init__(
        self, name: str, socket_path: Path, predict_timeout: float, max_input_tokens: int | None = None
    ) -> None:
        self.name = name
        self.metrics = RequestMetrics(metrics_dir(socket_path), name)
        self._max_input_tokens = max_input_tokens
        self._predict_timeout = predict_timeout
        self._loaded: LoadedText | None = None
        self._client = EngineClient(socket_path, self._on_ready)

    def start(self) -> None:
        """Connect to the engine, in the background."""
        self._client.start()

    @property
    def state(self) -> EngineState:
        """For `/ping`; never blocks."""
        return self._client.state

    @property
    def phase(self) -> str:
        """What the engine is doing, in a few words."""
        return self._client.phase

    @property
    def loaded(self) -> LoadedText:
        """What is known of the model. Raises `EngineNotReady` where none has loaded yet, nor does within a second."""
        if self._loaded is None:
            self._client.wait_ready(_PATIENCE)
        if self._loaded is None:
            raise EngineNotReady(f"the engine is not ready: {self.phase}")
        return self._loaded

    def start_draining(self) -> None:
        """The worker is shutting down: `/ping` says so."""
        self._client.start_draining()

    def end_draining(self) -> None:
        """The time to finish is over: what is still in flight fails."""
        self._client.end_draining()

    def start_generation(self, parsed: Parsed, usage: Usage, connected: Callable[[], bool]) -> Answer:
        """Validate against the engine's limits, tokenise and submit.

        Raises `InvalidRequest` where the prompt or a parameter is out of the model's reach, `EngineNotReady`.
        """
        self._client.wait_ready(_PATIENCE)
        loaded, request = self.loaded, parsed.request
        _check_limits(parsed, loaded.info)
        if request.beam_search is not None:
            check_beam_search(request, request.beam_search, loaded.info, loaded.tokenizer, parsed.spelling)
        prompts = [self._encode(loaded, parsed, position) for position in range(len(request.prompts))]
        usage.prompt_tokens = sum(map(len, prompts))
        usage.validation_time = time.monotonic() - usage.started
        generation = self._generate(loaded, request, prompts, connected)
        formatter = parsed.formatter(request, tuple(map(len, prompts)))
        n = request.sampling_params.n
        texts = [
            SequenceText(loaded.tokenizer, prompt, request.sampling_params, index=position * n + sample)
            for position, prompt in enumerate(prompts)
            for sample in range(n)
        ]
        usage.sequences = len(texts)
        usage.max_tokens = request.sampling_params.max_tokens or loaded.info.max_model_len - max(map(len, prompts))
        return Answer(generation, formatter, texts, usage, self.metrics)

    def _generate(
        self,
        loaded: LoadedText,
        request: GenerationRequest,
        prompts: list[list[int]],
        connected: Callable[[], bool],
    ) -> Generation | BeamGeneration:
        if request.beam_search is None:
            return self._client.submit(
                prompts,
                request.sampling_params,
                request_id=request.request_id,
                timeout=self._predict_timeout,
                connected=connected,
                adapters=request.adapters,
                priority=request.priority,
            )
        return BeamGeneration(
            self._client,
            prompts,
            request,
            request.beam_search,
            info=loaded.info,
            tokenizer=loaded.tokenizer,
            timeout=self._predict_timeout,
            connected=connected,
        )

    def _on_ready(self, info: EngineInfo) -> None:
        directory = Path(info.bundle)
        bundle = load_text_bundle(directory)
        tokenizer = Tokenizer(directory, bundle)
        tokenizer.encode("warm up")
        most = info.max_model_len - 1
        limits = TokenLimits(min(most, self._max_input_tokens or most), info.max_model_len, info.vocab_size)
        self._loaded = LoadedText(info, limits, bundle, tokenizer)

    @staticmethod
    def _encode(loaded: LoadedText, parsed: Parsed, position: int) -> list[int]:
        request = parsed.request
        field = "inputs" if len(request.prompts) == 1 else f"inputs[{position}]"
        prompt, limit = request.prompts[position], loaded.info.max_model_len
        if request.truncate is None and len(prompt) > _LONG * limit and loaded.tokenizer.is_longer(prompt, limit):
            raise InvalidRequest(f"has far more than the {limit} tokens that the model takes", field=field)
        token_ids = loaded.tokenizer.encode(prompt, truncate=request.truncate)
        parsed.check_length(request, position, len(token_ids), loaded.limits)
        if not token_ids:
            raise InvalidRequest("has no tokens", field=field)
        return token_ids


class Answer:
    """An answer in the making. Iterating yields response bytes, each of them whole records; `close` aborts it.

    The engine's and the client's errors are raised until the first bytes have been yielded, and from then on written as
    a record where the format has one. Either way that is the end.
    """

    def __init__(
        self,
        generation: Generation | BeamGeneration,
        formatter: Formatter,
        texts: list[SequenceText],
        usage: Usage,
        metrics: RequestMetrics,
    ) -> None:
        self.content_type = formatter.content_type
        self.streams = formatter.streams
        self.failure: LMIError | None = None
        self._formatter = formatter
        self._generation = generation
        self._texts = texts
        self.usage = usage
        self._metrics = metrics
        self._token_times: list[float | None] = [None] * len(texts)
        self._chunks = self._run()

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def close(self) -> None:
        """Stop generating what nobody will read."""
        self._chunks.close()
        self._generation.close()

    def _run(self) -> Generator[bytes, None, None]:
        begun = False
        with self._generation as generation:
            try:
                for batch in generation:
                    chunk = b"".join([self._feed(item) for item in batch])
                    if chunk:
                        yield chunk
                        begun = True
                last = self._formatter.finish()
            except GeneratorExit:
                self.failure = ClientDisconnected("the client closed the connection")
                raise
            except Exception as error:
                self.failure = error if isinstance(error, LMIError) else _unforeseen(error)
                if not begun:
                    raise self.failure from error
                last = self._formatter.error(self.failure)
        if last:
            yield last

    def _feed(self, item: SequenceOutput) -> bytes:
        usage, output = self.usage, item.output
        now = time.monotonic()
        if usage.first_token_time is None:
            usage.first_token_time = now - usage.started
            usage.queue_time = item.queue_time
        if tokens := len(output.token_ids):
            usage.generated_tokens += tokens
            previous, self._token_times[item.index] = self._token_times[item.index], now
            self._metrics.generated(tokens, None if previous is None else now - previous)
        delta = self._texts[item.index].feed(output)
        if delta.finish_reason is not None:
            usage.finish_reasons.append(delta.finish_reason.value)
            if delta.finish_reason is FinishReason.STOP_SEQUENCE:
                self._generation.abort(item.index)
        return self._formatter.feed(delta)


def _unforeseen(error: Exception) -> RequestFailed:
    """Log a mistake of ours, or of a plug-in's formatter, which must not cost the client its well-formed end."""
    logger.exception("internal error", exc_info=error)
    return RequestFailed(f"internal error ({type(error).__name__}); the server's log says more")


def _check_limits(parsed: Parsed, info: EngineInfo) -> None:
    """Refuse what this engine cannot do, before it hears of it. Raises `InvalidRequest` with the client's name of the field."""
    try:
        check_sampling_params(parsed.request.sampling_params, info)
        for adapter in parsed.request.adapters:
            check_adapter(adapter, info)
    except InvalidRequest as error:
        raise type(error)(error.message, field=parsed.spelling(error.field or "")) from error


_PATIENCE = 1.0
"""Seconds that a request waits for an engine that is not ready. `/ping` may have said 200 through another worker, which heard
of it a moment sooner; and a web worker that has just been replaced has not heard at all."""

_LONG = 8
"""Characters a token above which a prompt is measured before it is tokenised; prose has about four."""
