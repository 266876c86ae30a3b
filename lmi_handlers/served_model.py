"""The one way of a request through a web worker: text in, token ids to the engine, tokens back, formatted bytes out."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import msgspec

from formatters.base import Formatter
from lmi_handlers.beam_generation import BeamGeneration, check_beam_search
from lmi_handlers.dialects.base import ModelFacts, Parsed, TokenLimits
from lmi_handlers.engine.client import EngineClient, EngineState, Generation
from lmi_handlers.engine.messages import EngineInfo, SequenceOutput
from lmi_handlers.engine.settings import metrics_dir
from lmi_handlers.errors import (
    ClientDisconnected,
    EngineNotReady,
    InvalidRequest,
    LMIError,
    RequestFailed,
    UnsupportedFeature,
)
from lmi_handlers.limits import check_adapter, check_sampling_params
from lmi_handlers.media.images import image_loader
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.outputs import FinishReason
from lmi_handlers.properties import ServingProperties
from lmi_handlers.request import ChatPrompt, GenerationRequest, ImagePrompt, Prompt
from lmi_handlers.text.bundle import TextBundle, load_text_bundle
from lmi_handlers.text.chat_template import load_renderer, render_chat
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
    """The model that this worker serves, wherever its engine is. Thread-safe."""

    def __init__(self, properties: ServingProperties, socket_path: Path) -> None:
        self.name = properties.name
        self.metrics = RequestMetrics(metrics_dir(socket_path), self.name)
        self._model_id = properties.model_id or self.name
        self._max_input_tokens = properties.max_input_tokens
        self._predict_timeout = properties.predict_timeout
        self._images = image_loader(properties)
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

    @property
    def facts(self) -> ModelFacts:
        """What dialects may want to know of it. Raises `EngineNotReady` before it has loaded."""
        loaded = self.loaded
        return ModelFacts(
            self._model_id, loaded.info.adapters, loaded.bundle.tool_template, takes_images=loaded.info.takes_images
        )

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
        loaded = self.loaded
        _check_limits(parsed, loaded.info)
        request, prompts = _encode(parsed, loaded)
        if request.beam_search is not None:
            check_beam_search(request, request.beam_search, loaded.info, loaded.tokenizer, parsed.spelling)
        usage.prompt_tokens = sum(map(len, prompts))
        usage.validation_time = time.monotonic() - usage.started
        images = self._load_images(parsed, request, loaded.bundle.image_token)
        generation = self._generate(loaded, request, prompts, images, connected)
        formatter = parsed.formatter(request, tuple(map(len, prompts)))
        n = request.sampling_params.n
        texts = [
            SequenceText(loaded.tokenizer, prompt, request.sampling_params, index=position * n + sample)
            for position, prompt in enumerate(prompts)
            for sample in range(n)
        ]
        usage.sequences = len(texts)
        usage.max_tokens = request.sampling_params.max_tokens or loaded.info.max_model_len - max(map(len, prompts))
        return Answer(generation, formatter, texts, usage, self.metrics, parsed.spelling)

    def _generate(
        self,
        loaded: LoadedText,
        request: GenerationRequest,
        prompts: list[list[int]],
        image_prompts: list[ImagePrompt | None],
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
                image_prompts=image_prompts,
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

    def _load_images(self, parsed: Parsed, request: GenerationRequest, mark: str | None) -> list[ImagePrompt | None]:
        """Get the images of each prompt; an empty list where there are none at all. Raises `InvalidRequest`."""
        sources = [prompt.images if isinstance(prompt, ChatPrompt) else () for prompt in parsed.prompts]
        if not any(sources):
            return []
        if request.truncate is not None:
            raise InvalidRequest("cannot be combined with images", field="truncate_prompt_tokens")
        for text, images in zip(request.prompts, sources, strict=True):
            if mark and text.count(mark) > len(images):
                raise InvalidRequest(f"has {mark}, which stands for an image, in a text", field=parsed.prompt_field)
        return [
            ImagePrompt(text, self._images.load(images)) if images else None
            for text, images in zip(request.prompts, sources, strict=True)
        ]

    def _on_ready(self, info: EngineInfo) -> None:
        directory = Path(info.bundle)
        bundle = load_text_bundle(directory)
        tokenizer = Tokenizer(directory, bundle)
        tokenizer.encode("warm up")
        if bundle.chat_templates:
            with contextlib.suppress(UnsupportedFeature):  # a chat's request will be told
                load_renderer()
        most = info.max_model_len - 1
        limits = TokenLimits(min(most, self._max_input_tokens or most), info.max_model_len, info.vocab_size)
        self._loaded = LoadedText(info, limits, bundle, tokenizer)


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
        spelling: Callable[[str], str],
    ) -> None:
        self.content_type = formatter.content_type
        self.streams = formatter.streams
        self.failure: LMIError | None = None
        self._formatter = formatter
        self._generation = generation
        self._texts = texts
        self.usage = usage
        self._metrics = metrics
        self._spelling = spelling
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
                self.failure = _respelled(error, self._spelling) if isinstance(error, LMIError) else _unforeseen(error)
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
        if output.num_prompt_tokens is not None:
            usage.prompt_tokens = output.num_prompt_tokens
            self._formatter.prompt_tokens = (output.num_prompt_tokens,)
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


def _respelled(error: LMIError, spelling: Callable[[str], str]) -> LMIError:
    """The error with the client's name of the field that it is about."""
    if isinstance(error, InvalidRequest) and error.field is not None:
        return type(error)(error.message, field=spelling(error.field))
    return error


def _unforeseen(error: Exception) -> RequestFailed:
    """Log a mistake of ours, or of a plug-in's formatter, which must not cost the client its well-formed end."""
    logger.exception("internal error", exc_info=error)
    return RequestFailed(f"internal error ({type(error).__name__}); the server's log says more")


def _encode(parsed: Parsed, loaded: LoadedText) -> tuple[GenerationRequest, list[list[int]]]:
    """Return the request with the texts of its prompts, and their token ids. Raises `InvalidRequest`."""
    request = parsed.request
    prompts = parsed.prompts or request.prompts
    texts, token_ids = [], []
    for position, prompt in enumerate(prompts):
        text, ids = _encode_prompt(parsed, position, prompt, loaded)
        parsed.check_length(request, position, len(ids), loaded.limits)
        if not ids:
            raise InvalidRequest("has no tokens", field=_prompt_field(parsed, position))
        texts.append(text)
        token_ids.append(ids)
    return msgspec.structs.replace(request, prompts=tuple(texts)) if parsed.prompts else request, token_ids


def _encode_prompt(parsed: Parsed, position: int, prompt: Prompt, loaded: LoadedText) -> tuple[str, list[int]]:
    request, tokenizer, limit = parsed.request, loaded.tokenizer, loaded.info.max_model_len
    if isinstance(prompt, tuple):
        if prompt and not (min(prompt) >= 0 and max(prompt) < loaded.info.vocab_size):
            raise InvalidRequest(
                f"has token ids outside the model's 0 to {loaded.info.vocab_size - 1}",
                field=_prompt_field(parsed, position),
            )
        ids = list(prompt if request.truncate is None else prompt[-request.truncate :])
        text = tokenizer.decode(ids)
    else:
        text = prompt if isinstance(prompt, str) else render_chat(loaded.bundle, prompt)
        if request.truncate is None and len(text) > _LONG * limit:
            estimate = tokenizer.estimate_beyond(text, limit)
            if estimate is not None:
                parsed.check_length(request, position, estimate, loaded.limits)
        # A template has written the special tokens itself.
        ids = tokenizer.encode(text, add_special_tokens=isinstance(prompt, str), truncate=request.truncate)
    return text, ids


def _prompt_field(parsed: Parsed, position: int) -> str:
    several = len(parsed.prompts or parsed.request.prompts) > 1
    return f"{parsed.prompt_field}[{position}]" if several else parsed.prompt_field


def _check_limits(parsed: Parsed, info: EngineInfo) -> None:
    """Refuse what this engine cannot do, before it hears of it. Raises `InvalidRequest` with the client's name of the field."""
    try:
        check_sampling_params(parsed.request.sampling_params, info)
        for adapter in parsed.request.adapters:
            check_adapter(adapter, info)
    except InvalidRequest as error:
        raise _respelled(error, parsed.spelling) from error


_PATIENCE = 1.0
"""Seconds that a request waits for an engine that is not ready. `/ping` may have said 200 through another worker, which heard
of it a moment sooner; and a web worker that has just been replaced has not heard at all."""

_LONG = 8
"""Characters a token above which a prompt is measured before it is tokenised; prose has about four."""
