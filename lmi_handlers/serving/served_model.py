"""Request lifecycle in a web worker: check, tokenise, submit to the engine, answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from formatters.base import Formatter
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import (
    Capabilities,
    check_adapter,
    check_cache_salt,
    check_continuation,
    check_continued_length,
    check_not_ended,
    check_sampling_params,
    check_task,
)
from lmi_handlers.core.deadline import Cutoff, Deadline
from lmi_handlers.core.errors import (
    DeadlineExceeded,
    EngineNotReady,
    InvalidRequest,
    UnsupportedFeature,
    aliased,
)
from lmi_handlers.core.event_loop import at_once
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import EncodedPrompt, GenerationRequest, RenderedPrompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Owner, Usage
from lmi_handlers.custom_code.formatting.client import NOT_READY, FormatterClient
from lmi_handlers.engine.adapter_registry import RegisteredAdapter, read_registry
from lmi_handlers.engine.client import InFlightRequest
from lmi_handlers.engine.messages import Loading, Ready
from lmi_handlers.engine.replicas import Replicas
from lmi_handlers.engine.settings import engine_socket_path, shadow_dir
from lmi_handlers.engine.status import EngineState, Status, not_ready
from lmi_handlers.media.images import image_loader
from lmi_handlers.media.sounds import sound_loader
from lmi_handlers.serving.answer import Answer, Continued, PooledPrompt
from lmi_handlers.serving.beam_generation import BeamGeneration
from lmi_handlers.serving.beam_params import check_beam_search
from lmi_handlers.serving.continuation import Continuations, Fixed, Opened, own_key
from lmi_handlers.serving.explanation import ChosenDialect, Explanation, explain
from lmi_handlers.serving.parsed import ModelFacts, Parsed
from lmi_handlers.serving.prompts import (
    LoadedText,
    TokenizedPrompt,
    encode_prompt,
    encode_prompts,
    takes_long,
    tokenize_prompts,
)
from lmi_handlers.serving.served import PATIENCE, Served
from lmi_handlers.serving.shadow import Shadow
from lmi_handlers.text.bundle import TextBundle, load_text_bundle
from lmi_handlers.text.sequence import SequenceText, TextRules
from lmi_handlers.text.tokenizer import Tokenizer


class ServedModel(Served):
    """A model that one or more engines serve. `formatters` are its own, for the invoke routes."""

    def __init__(
        self,
        properties: ServingProperties,
        socket_paths: Sequence[Path],
        formatters: FormatterClient | None = None,
        continuation_key: bytes | None = None,
    ) -> None:
        """`socket_paths` has the socket of each engine. All of them are in the server's runtime directory.

        `continuation_key` signs continuation tokens. By default, it is a key of this server alone.
        """
        self.formatters = formatters
        self._client = Replicas(socket_paths, self._on_announcement, properties.stall_timeout)
        super().__init__(properties, socket_paths[0].parent, self._client.status)
        self._model_id = properties.public_name
        self.root = properties.hub_id or self.name  # for routes that need no key
        self._has_sampling_defaults = properties.generation_config == "auto"
        self._images = image_loader(properties)
        self._sounds = sound_loader(properties)
        self._budget = Budget.of(properties)
        self._deadlines = {
            "response_deadline": properties.response_deadline,
            "stream_deadline": properties.stream_deadline,
        }
        if continuation_key is None and any(self._deadlines.values()):
            continuation_key = own_key(self.runtime_dir)
        self._continuations = Continuations(continuation_key, properties.continuation_seconds)
        self._thinking_token_budget = properties.thinking_token_budget
        self._keep_alive = float(properties.sse_keep_alive) or math.inf
        self._loaded: LoadedText | None = None
        self._text: tuple[TextBundle, Tokenizer] | None = None
        self._shadow: Shadow | None = None
        if properties.shadow_model is not None:
            socket_path = engine_socket_path(shadow_dir(self.runtime_dir))
            self._shadow = Shadow(properties, socket_path, self.metrics, self._has_room)

    def start(self) -> None:
        """Connect to the engine in the background."""
        self._client.start()
        if self.formatters is not None:
            self.formatters.start()
        if self._shadow is not None:
            self._shadow.start()

    def close(self) -> None:
        self._client.close()
        if self._shadow is not None:
            self._shadow.close()
        if self.formatters is not None:
            self.formatters.close()
        super().close()

    @property
    def state(self) -> EngineState:
        state = self._status.state
        return EngineState.STARTING if state is EngineState.READY and self._lacks_formatters else state

    @property
    def phase(self) -> str:
        return NOT_READY if self._status.state is EngineState.READY and self._lacks_formatters else self._status.phase

    @property
    def engines(self) -> Sequence[Status]:
        return self._client.status.parts

    @property
    def known_facts(self) -> ModelFacts | None:
        """The same as `facts` without waiting: None before the model has loaded."""
        return None if self._loaded is None else self.facts

    @property
    def loaded(self) -> LoadedText:
        """The model's tokenizer and limits. Raises `EngineNotReady` unless it is loaded or loads within a second."""
        if self._loaded is None:
            self._status.wait_ready(PATIENCE)
        if self._loaded is None:
            raise EngineNotReady(not_ready(self.phase))
        return self._loaded

    @property
    def facts(self) -> ModelFacts:
        """The facts about the model for dialects. Raises `EngineNotReady` before it has loaded."""
        loaded = self.loaded
        bundle = loaded.bundle
        defaults = bundle.sampling_defaults if self._has_sampling_defaults else {}
        infill = loaded.tokenizer.infill
        return ModelFacts(
            self._model_id,
            bundle.tool_template,
            loaded.capabilities,
            bundle.prompts,
            defaults,
            infill,
            () if infill is None else loaded.tokenizer.added_ids(infill.ends),
        )

    def end_draining(self) -> None:
        """Fail all requests that are still in flight."""
        self._client.end_draining()
        if self.formatters is not None:
            self.formatters.end_draining()

    @property
    def adapters(self) -> dict[str, RegisteredAdapter]:
        """The adapters that are loaded, by name."""
        return read_registry(self.runtime_dir) or {}

    def load_adapter(
        self,
        name: str,
        source: str,
        *,
        pinned: bool = False,
        replace: bool = False,
        options: Mapping[str, Any] = {},  # noqa: ARG002  engines have none
    ) -> None:
        """Load an adapter into the engine. See `EngineClient.load_adapter`."""
        self._client.load_adapter(name, source, timeout=self.predict_timeout, pinned=pinned, replace=replace)

    def unload_adapter(self, name: str) -> None:
        """Refuse further requests for an adapter."""
        self._client.unload_adapter(name, timeout=self.predict_timeout)

    @property
    def continues(self) -> bool:
        """True if answers that a deadline ends can be continued."""
        return self._continuations.issues

    def cutoff(self, started: float, *, stream: bool) -> Cutoff | None:
        """Return when the answer to a request ends with the text that it has, if an option says so."""
        option = "stream_deadline" if stream else "response_deadline"
        seconds = self._deadlines[option]
        return None if seconds is None else Cutoff(started + seconds, option)

    def start_generation(self, parsed: Parsed, usage: Usage, deadline: Deadline) -> Answer:
        """Validate against the engine's limits, tokenise and submit.

        Raises `InvalidRequest` if the prompt or a parameter exceeds the model's limits, and `EngineNotReady`.
        """
        opened = self._opened(parsed, usage)
        parsed = _continuing(parsed, opened)
        prepared = self._prepare(parsed, deadline)
        parsed, loaded, rendered = prepared.parsed, prepared.loaded, prepared.rendered
        request = parsed.request
        usage.prompt_tokens = sum(prompt.num_tokens for prompt in rendered)
        digests = loaded.capabilities.adapter_digests
        prompts = encode_prompts(request, prepared.tokenized, self._images, self._sounds, digests)
        current = self.loaded  # the request may have been checked for another engine, and loading images takes long
        if current is not loaded:
            _check_unchanged(loaded.capabilities, current.capabilities)
            prompts = [_for_adapters(prompt, current.capabilities.adapter_digests) for prompt in prompts]
        fixed: Callable[[], Fixed] = partial(self._fixed, loaded, prompts[0], request)
        if prompts[0].media_prompt is not None and (opened is not None or self._may_cut(deadline)):
            # Images and sounds are large: they are digested once, and the answer does not keep them in memory.
            fixed = partial(Fixed, *self.run_beside(fixed))
        usage.validation_time = time.monotonic() - usage.started
        if opened is not None:
            opened.check(fixed())
            request = _without_prompt_logprobs(request)
        formatter = parsed.formatter(request, rendered)
        texts: Sequence[SequenceText | PooledPrompt]
        if request.pooling_params is not None:
            texts = [PooledPrompt(position) for position in range(len(prompts))]
        else:
            usage.samples = n = request.sampling_params.n
            texts = [
                SequenceText(prepared.rules, prompt.token_ids, index=position * n + sample)
                for position, prompt in enumerate(prompts)
                for sample in range(n)
            ]
            longest = max(prompt.num_tokens for prompt in rendered)
            usage.max_tokens = request.sampling_params.max_tokens or loaded.capabilities.max_model_len - longest
        usage.block_size = loaded.capabilities.block_size
        if request.generated and isinstance(texts[0], SequenceText):
            run = self.run_beside if len(request.generated) > _MANY_TOKENS else at_once
            run(_resume, texts[0], formatter, request.generated)
            usage.continued_tokens = len(request.generated)
        sample = None if self._shadow is None else self._shadow.sample(request, prompts, loaded.capabilities)
        generation = self._generate(loaded, request if sample is None else sample.request, prompts, deadline)
        usage.sequences = len(texts)  # none if it was refused
        continued = self._continued(parsed, deadline, loaded.capabilities, fixed, usage.owner)
        return Answer(
            generation,
            formatter,
            texts,
            usage,
            self.metrics,
            parsed,
            self.run_beside,
            self._keep_alive,
            sample,
            continued,
        )

    def explain(
        self, parsed: Parsed, body: object, chosen: ChosenDialect, usage: Usage, deadline: Deadline
    ) -> Explanation:
        """Explain what `start_generation` would do with a request. `body` is its decoded JSON, if it is JSON.

        Raises the same errors, and `InvalidRequest` if the prompts have more tokens than an answer may show. Images and
        sounds are not loaded, so a request with some may still continue an answer about others.
        """
        opened = self._opened(parsed, usage)
        prepared = self._prepare(_continuing(parsed, opened), deadline)
        parsed = prepared.parsed
        if opened is not None:
            request, loaded = parsed.request, prepared.loaded
            prompt, digests = request.prompts[0], loaded.capabilities.adapter_digests
            encoded = encode_prompt(request, prompt.adapter, prepared.tokenized[0], digests)
            opened.check(self._fixed(loaded, encoded, request), has_prompt=not prompt.has_media)
        self._budget.check_prompt_ids(
            sum(len(prompt.token_ids) for prompt in prepared.tokenized), field=parsed.prompt_field
        )
        return explain(
            parsed,
            body,
            chosen=chosen,
            tokenized=prepared.tokenized,
            formatter=parsed.formatter(parsed.request, prepared.rendered),
            facts=self.facts,
            deadline=deadline,
            now=usage.started,
        )

    def _opened(self, parsed: Parsed, usage: Usage) -> Opened | None:
        """Return the content of the request's continuation token, if it has one. Raises `InvalidRequest`."""
        if parsed.continuation is None:
            return None
        opened = self._continuations.open(parsed.continuation, usage.owner)
        if parsed.on_complete is not None:
            raise UnsupportedFeature(
                "a session with option.session_history has kept the answer as it was cut: send another message"
            )
        opened.check_model(self._identity(self.loaded))
        return opened

    def _continued(
        self,
        parsed: Parsed,
        deadline: Deadline,
        capabilities: Capabilities,
        fixed: Callable[[], Fixed],
        owner: Owner,
    ) -> Continued | None:
        """Return what makes a token for an answer that its deadline may cut, or None if it could not be continued."""
        request = parsed.request
        if not self._may_cut(deadline) or parsed.on_complete is not None:
            return None
        try:
            check_continuation(
                msgspec.structs.replace(request, generated=request.generated or _ANY_TOKEN), capabilities
            )
        except InvalidRequest:
            return None
        return Continued([*request.generated], lambda generated: self._continuations.seal(generated, fixed(), owner))

    def _may_cut(self, deadline: Deadline) -> bool:
        """True if the answer gets a token when its deadline ends it, unless it is one that cannot be continued."""
        return deadline.cutoff is not None and self.continues

    def _fixed(self, loaded: LoadedText, prompt: EncodedPrompt, request: GenerationRequest) -> Fixed:
        return Fixed.of(self._identity(loaded), prompt, _asked_sampling(request))

    def _identity(self, loaded: LoadedText) -> str:
        """Return a text that is equal on servers whose engines can continue each other's answers."""
        return f"{self._model_id}\n{loaded.bundle.tokenizer_hash}\n{loaded.capabilities.weights_digest}"

    def _prepare(self, parsed: Parsed, deadline: Deadline) -> _Prepared:
        """Check a request against the engine's limits, and tokenise it."""
        parsed = self._with_thinking_budget(parsed)
        request = parsed.request
        _check_sequences(parsed, self._budget)
        self._status.wait_ready(PATIENCE)
        loaded = self.loaded
        _check_limits(parsed, loaded.capabilities)
        check_not_ended(request, loaded.bundle.eos_token_ids)
        run = self.run_beside if takes_long(request) else at_once
        tokenized, rules = run(_tokenize, parsed, loaded, self._budget, deadline)
        if request.beam_search is not None:
            check_beam_search(request, request.beam_search, loaded.capabilities, loaded.tokenizer, parsed.alias)
        if request.generated:
            longest = max(len(prompt.token_ids) for prompt in tokenized)
            check_continued_length(longest, request.generated, loaded.capabilities)
        rendered = tuple(RenderedPrompt(prompt.text, len(prompt.token_ids), prompt.token_ids) for prompt in tokenized)
        return _Prepared(parsed, loaded, tokenized, rules, rendered)

    def _with_thinking_budget(self, parsed: Parsed) -> Parsed:
        """Settle the cap on thoughts. The option's is not for beam search, whose beams no engine sees."""
        request = parsed.request
        if request.pooling_params is not None:
            return parsed
        default = None if request.beam_search is not None else self._thinking_token_budget
        params = request.sampling_params.with_thinking_budget(default)
        if params is request.sampling_params:
            return parsed
        request = msgspec.structs.replace(request, sampling_params=params)
        return msgspec.structs.replace(parsed, request=request)

    def _generate(
        self,
        loaded: LoadedText,
        request: GenerationRequest,
        prompts: list[EncodedPrompt],
        deadline: Deadline,
    ) -> InFlightRequest | BeamGeneration:
        if request.beam_search is None:
            return self._client.submit(prompts, request, deadline)
        return BeamGeneration(
            self._client,
            prompts,
            request,
            request.beam_search,
            capabilities=loaded.capabilities,
            tokenizer=loaded.tokenizer,
            deadline=deadline,
        )

    def _has_room(self) -> bool:
        """Tell whether at most half of the places are taken in each engine's batch, as far as this worker knows."""
        return self._loaded is not None and 2 * self._client.load <= self._loaded.capabilities.max_num_seqs

    @property
    def _lacks_formatters(self) -> bool:
        return self.formatters is not None and not self.formatters.ready

    def _on_announcement(self, message: Loading | Ready) -> None:
        """Load the tokenizer as soon as its files exist, while the engine loads. It takes up to a second."""
        if message.bundle is None:
            return
        directory = Path(message.bundle)
        bundle = load_text_bundle(directory)
        if self._text is None or self._text[0] != bundle:
            tokenizer = Tokenizer(directory, bundle)
            tokenizer.encode("warm up")
            self._text = bundle, tokenizer
        if isinstance(message, Ready):
            self._loaded = LoadedText(message.capabilities, *self._text)


class _Prepared(NamedTuple):
    """A request that was found to be valid, with its prompts as tokens and the rules of its answers' text."""

    parsed: Parsed
    loaded: LoadedText
    tokenized: list[TokenizedPrompt]
    rules: TextRules
    rendered: tuple[RenderedPrompt, ...]


def _check_unchanged(known: Capabilities, current: Capabilities) -> None:
    """Raise `EngineNotReady` if the engine is another one by now."""
    adapters: dict[str, Any] = {"adapters": (), "adapter_digests": {}}  # all else stays while an engine runs
    if msgspec.structs.replace(current, **adapters) != msgspec.structs.replace(known, **adapters):
        raise EngineNotReady("the engine was restarted while the request was being prepared")


def _for_adapters(prompt: EncodedPrompt, digests: Mapping[str, str]) -> EncodedPrompt:
    """Return the prompt for the adapter that has its name by now. The engine refuses it if there is none."""
    if prompt.adapter is None or digests.get(prompt.adapter, prompt.adapter_digest) == prompt.adapter_digest:
        return prompt
    return msgspec.structs.replace(prompt, adapter_digest=digests[prompt.adapter])


def _tokenize(
    parsed: Parsed, loaded: LoadedText, budget: Budget, deadline: Deadline
) -> tuple[list[TokenizedPrompt], TextRules]:
    """Return the tokenised prompts, and the text rules of their answers.

    All work that `takes_long` estimates happens here.
    """
    if deadline.left <= 0:  # it may have waited for a thread
        raise DeadlineExceeded
    tokenized, params = tokenize_prompts(parsed, loaded), parsed.request.sampling_params
    tokens = sum(len(prompt.token_ids) for prompt in tokenized) * params.n
    if params.prompt_logprobs is not None:
        with aliased(parsed.alias):
            budget.check_prompt_logprobs(tokens, params.prompt_logprobs)
    if parsed.shows_prompt_ids:
        budget.check_prompt_ids(tokens)
    if copies := params.n if parsed.request.return_full_text else parsed.prompt_copies:
        budget.check_repeated(parsed.prompt_field, "".join(prompt.text for prompt in tokenized), copies)
    return tokenized, TextRules(loaded.tokenizer, params)


def _continuing(parsed: Parsed, opened: Opened | None) -> Parsed:
    """Return the request with the tokens that were generated before."""
    if opened is None:
        return parsed
    return msgspec.structs.replace(parsed, request=msgspec.structs.replace(parsed.request, generated=opened.generated))


def _resume(text: SequenceText, formatter: Formatter, generated: tuple[int, ...]) -> None:
    """Let an answer's text go on after these tokens. Raises `InvalidRequest` if they have ended it."""
    formatter.resume(text.feed(TokenOutput(request_id="", token_ids=list(generated))))
    if text.finish_reason is not None:
        raise InvalidRequest("the answer has ended with a stop string", code="continuation_finished")


def _asked_sampling(request: GenerationRequest) -> SamplingParams:
    """Return the sampling parameters that a repeated request has again. A seed that the server has chosen is none."""
    params = request.sampling_params
    return msgspec.structs.replace(params, seed=None) if request.has_random_seed else params


def _without_prompt_logprobs(request: GenerationRequest) -> GenerationRequest:
    """Return a request for the rest of an answer, whose first part has had the prompt's log probabilities."""
    if request.sampling_params.prompt_logprobs is None:
        return request
    params = msgspec.structs.replace(request.sampling_params, prompt_logprobs=None)
    return msgspec.structs.replace(request, sampling_params=params)


_ANY_TOKEN = (0,)

_MANY_TOKENS = 1024
"""Tokens of an earlier answer that are read off the event loop."""


def _check_sequences(parsed: Parsed, budget: Budget) -> None:
    prompts, n, beams = len(parsed.request.prompts), parsed.request.sampling_params.n, parsed.request.beam_search
    n = n if beams is None else max(n, beams.num_beams)
    if prompts == n == 1:  # which is always allowed
        return
    budget.check_sequences(parsed.prompt_field if prompts > 1 else parsed.alias("n"), prompts, n)


def _check_limits(parsed: Parsed, capabilities: Capabilities) -> None:
    """Refuse what this engine cannot do before submitting it. Raises `InvalidRequest` with the client's field name."""
    with aliased(parsed.alias):
        check_task(parsed.request.pooling_params, capabilities)
        check_sampling_params(parsed.request.sampling_params, capabilities)
        check_cache_salt(parsed.request.cache_salt, capabilities)
        check_continuation(parsed.request, capabilities)
        for prompt in parsed.request.prompts:
            check_adapter(prompt.adapter, capabilities)
