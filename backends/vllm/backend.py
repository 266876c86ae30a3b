"""The vLLM adapter: adds requests, runs steps, returns deltas and translates vLLM's errors.

On one device the engine core runs in this process. By measurement this is faster than vLLM's own split into processes,
and it starts in a fraction of the time. With tensor or pipeline parallelism, vLLM starts its workers from this process.
"""

from __future__ import annotations

import backends.vllm.environment  # noqa: F401  before vLLM is imported

# isort: split

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from vllm import LLMEngine
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.inputs import EngineInput
from vllm.v1.request import Request

from backends.base import Backend, ModelFiles
from backends.continuation import NOT_CONTINUED, within_prompt
from backends.grammar import Vocabulary
from backends.grammar_compiler import GrammarCompiler
from backends.media_preparer import DecodedMedia, MediaPreparer
from backends.sounds import PromptSounds
from backends.token_limits import token_limits
from backends.vllm import DECLARATION
from backends.vllm.adapters import EngineAdapters
from backends.vllm.engine_args import GRAMMAR_LIBRARY, TOKENIZER_FILE, engine_arguments
from backends.vllm.errors import one_line
from backends.vllm.inputs import engine_input
from backends.vllm.media import TakenMedia, taken_media
from backends.vllm.model_runner import check_buffers, typical_processor
from backends.vllm.offload import configure_offloading, keeps_media_apart, keeps_salts_apart
from backends.vllm.sampling import engine_sampling_params, token_output
from backends.vllm.start import PATIENCE, checkpoint, preview_workers, start_engine, workers_of
from backends.vllm.thinking import caps_thoughts, reasoning_config
from backends.vllm.warm_up import compile_logprobs
from backends.waiting_sequences import WaitingSequences, refusal
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.errors import ConfigError, EngineDead, InvalidRequest
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.media.files import max_sounds

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

# vLLM compiles a grammar again when the request starts, which blocks all others for at most a third of this.
_GRAMMAR_SECONDS = 0.1
_READ_SIZE = 1 << 20
_TRIAL_SECONDS = 2.0  # for compiling and a few tokens


class VLLMBackend(Backend):
    """One `LLMEngine`. Any exception from its `step` is fatal, because the engine's state is undefined afterwards."""

    declaration = DECLARATION

    def __init__(self, engine: LLMEngine, model: ModelFiles, properties: ServingProperties) -> None:
        """Wrap the engine and load the adapters. Raises `ConfigError` if one does not fit the model."""
        self._engine = engine
        config = engine.vllm_config
        vocab_size, max_logprobs = config.model_config.get_vocab_size(), config.model_config.max_logprobs
        # Some files have ids that the model does not. They are never generated, and with `min_tokens` the step fails.
        self._eos_token_ids = tuple(token for token in model.eos_token_ids if token < vocab_size)
        self._by_priority = config.scheduler_config.policy == "priority"
        self._has_buffers = config.use_v2_model_runner
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._running: dict[str, _Running] = {}
        self._counters = EngineCounters()
        self._progress = 0
        self._waiting_sequences: WaitingSequences[str, EngineInput] = WaitingSequences()
        self._grammars: GrammarCompiler[str] | None = None
        media = taken_media(engine, max_sounds(properties.limit_mm_per_prompt))
        if not keeps_media_apart(config):
            media = TakenMedia()
        self._media: MediaPreparer[EngineInput] | None = None
        if media.images or media.sound_rate is not None:
            sounds = None if media.sound_rate is None else PromptSounds(media.sound_rate, properties.max_audio_seconds)
            self._media = MediaPreparer(self._render, sounds)
        self._workers = workers_of(engine)
        self._adapters = EngineAdapters(engine)
        for name, folder in model.adapters.items():
            try:
                self._adapters.add(name, folder)
            except InvalidRequest as error:  # noqa: PERF203  it ends the loop
                raise ConfigError(f"option.enable_lora: {error}") from error
        logger.info(
            "model loaded",
            extra={
                "dtype": str(config.model_config.dtype).removeprefix("torch."),
                "device": config.device_config.device_type,
                "model_runner": 2 if config.use_v2_model_runner else 1,
                "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
                "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
                "kv_cache_tokens": (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size,
            },
        )
        self._capabilities = Capabilities(
            backend=self.declaration.name,
            max_model_len=config.model_config.max_model_len,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            vocab_size=vocab_size,
            max_logprobs=vocab_size if max_logprobs == -1 else max_logprobs,
            unsupported=(*DECLARATION.unsupported, *_unsupported_by(config)),
            adapters=self._adapters.names,
            device=config.device_config.device_type,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            takes_images=media.images,
            takes_sounds=media.sound_rate is not None,
            sound_marks=media.sound_marks,
            takes_cache_salt=keeps_salts_apart(config),
            continues=True,
            not_continued=NOT_CONTINUED,
            block_size=config.cache_config.block_size,
            num_blocks=config.cache_config.num_gpu_blocks or 0,
            max_loras=None if config.lora_config is None else config.lora_config.max_loras,
        )
        if config.structured_outputs_config.backend == GRAMMAR_LIBRARY:
            self._grammars = self._grammar_compiler(model)

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> Self:
        """Build the engine. Any failure raises `ConfigError` or `LoadFailed` with a one-line message."""
        path = checkpoint(model, cls.declaration.name)
        arguments = engine_arguments(
            path, properties, backend=cls.declaration, adapters=len(model.adapters), report=report
        )
        configure_offloading(cls.declaration, properties, arguments, model)
        if model.thinking is not None and arguments.reasoning_config is None:
            arguments.reasoning_config = reasoning_config(model.thinking)
        engine = start_engine(arguments, properties, report, warm_up=compile_logprobs)
        return cls(engine, model, properties)

    @classmethod
    def check_options(cls, properties: ServingProperties) -> None:
        """Check the options with vLLM's own parser."""
        engine_arguments(Path(), properties, backend=cls.declaration)

    @classmethod
    def preview_resources(cls, properties: ServingProperties) -> tuple[str, bool]:
        """Ask Ray, in a process of its own."""
        return preview_workers(properties)

    @property
    def capabilities(self) -> Capabilities:
        """Taken from the engine's own configuration."""
        return self._capabilities

    def add_request(self, request: TokenRequest) -> None:
        """Start a sequence, after trying its grammar and preparing its images and sounds. Raises `InvalidRequest`."""
        request = within_prompt(request)
        wanted = request.sampling_params.structured_outputs
        grammar = None if wanted is None or self._grammars is None else self._grammars.submit(wanted)
        media = None if self._media is None else self._media.submit(request)
        if grammar is None and media is None:
            self._start(request)
        else:
            self._waiting_sequences.add(request, grammar, media)

    def abort(self, request_id: str) -> None:
        """Drop a sequence. vLLM returns no further output for it."""
        if not self._waiting_sequences.discard(request_id) and request_id in self._running:
            self._engine.abort_request([request_id])
            self._end(request_id)

    def step(self) -> list[TokenOutput]:
        """Run one step of the engine. Any error in it raises `EngineDead`."""
        results = self._start_prepared()
        if not self._running:
            if not results:
                self._waiting_sequences.wait()
                self._progress -= 1  # preparing has its own time limits
            return results
        try:
            outputs = self._engine.step()
            if not outputs:
                self._progress = self._computed_tokens()
        except Exception as error:
            self._workers.check_health(patience=PATIENCE)
            raise EngineDead(f"vLLM: {one_line(error)}") from error
        for output in outputs:
            running = self._running[output.request_id]
            results.append(token_output(output, running.request, first=not running.begun))
            if not running.begun:
                running.begun = True
                if self._scheduler.kv_cache_manager.prefix_cache_lookup_enabled(running.record):
                    self._counters += _counts_of_lookup(running.record, output.num_cached_tokens or 0)
            if output.finished:
                self._end(output.request_id)
        return results

    @property
    def num_preparing(self) -> int:
        """Number of sequences whose grammar or media are being prepared, at most `max_num_seqs`."""
        return min(len(self._waiting_sequences), self._capabilities.max_num_seqs)

    @property
    def progress(self) -> int:
        """Changes when a step without output computes tokens, such as part of a long prompt."""
        return self._progress

    @property
    def kv_cache_usage(self) -> float:
        """Share of vLLM's KV cache blocks in use."""
        usage: float = self._scheduler.get_kv_cache_usage()
        return usage

    @property
    def counters(self) -> EngineCounters:
        """Speculation and preemptions are counted when a sequence ends."""
        return self._counters

    def check_health(self) -> None:
        """Check the worker processes, if there are any. Raises `EngineDead` with the name of a dead one."""
        self._workers.check_health()

    def close(self) -> None:
        """Stop vLLM's worker processes, if there are any, and the processes that try grammars and prepare media."""
        if self._grammars is not None:
            self._grammars.close()
        if self._media is not None:
            self._media.close()
        self._engine.engine_core.shutdown()

    def read_adapter(self, name: str, folder: Path) -> None:  # noqa: ARG002  the base class's
        """Bring the files into the page cache, so that vLLM, which reads them between two steps, need not wait for them."""
        for file in folder.iterdir():
            with contextlib.suppress(OSError), file.open("rb") as stream:
                while stream.read(_READ_SIZE):
                    pass

    def add_adapter(self, name: str, folder: Path, adapter: None, *, pinned: bool = False) -> None:  # noqa: ARG002  as above
        """Load an adapter into vLLM."""
        self._adapters.drop_replaced(self._adapters_in_use())
        self._adapters.add(name, folder, pinned=pinned)
        self._adapters.drop_replaced(self._adapters_in_use())

    def remove_adapter(self, name: str) -> None:
        """Unload an adapter from vLLM."""
        self._adapters.remove(name)

    def _adapters_in_use(self) -> set[str | None]:
        requests = (running.record.lora_request for running in self._running.values())
        return {None if request is None else request.lora_name for request in requests}

    def _start(self, request: TokenRequest, grammar: str | None = None, prompt: EngineInput | None = None) -> None:
        """Hand a sequence to vLLM. `grammar` and `prompt` are the compiled grammar's text and the prompt with media.

        Raises `InvalidRequest`.
        """
        max_tokens, min_tokens = token_limits(request, self._capabilities)
        asked = msgspec.structs.replace(request.sampling_params, max_tokens=max_tokens, min_tokens=min_tokens)
        try:
            params = engine_sampling_params(asked, self._eos_token_ids, grammar)
            if self._has_buffers:
                # `add_request` would do this too. It sets fields that are checked: the bad words' tokens and the
                # stop ids from the model.
                params.update_from_tokenizer(self._engine.get_tokenizer())
                fields = self._engine.input_processor.generation_config_fields
                params.update_from_generation_config(fields, self._engine.renderer.get_eos_token_id())
                check_buffers(params)
            name = request.prompt.adapter
            adapter = None if name is None else self._adapters.get(name)
            engine_id = self._engine.add_request(
                request.request_id,
                engine_input(request.prompt, prompt),
                params,
                lora_request=adapter,
                priority=request.priority if self._by_priority else 0,
            )
        except (VLLMClientError, ValueError) as error:
            raise InvalidRequest(one_line(error)) from error
        self._running[request.request_id] = _Running(request, self._scheduler.requests[engine_id])

    def _end(self, request_id: str) -> None:
        self._counters += _counts_of_run(self._running.pop(request_id).record)

    def _computed_tokens(self) -> int:
        """Return the total number of computed tokens of all running requests."""
        return sum(request.num_computed_tokens for request in self._scheduler.running)

    def _start_prepared(self) -> list[TokenOutput]:
        """Start the sequences that are ready, and return an error output for each one that failed."""
        prepared, refused = self._waiting_sequences.collect()
        for item in prepared:
            try:
                self._start(item.request, item.grammar, item.media)
            except InvalidRequest as error:  # noqa: PERF203  one failure must not affect the others
                refused.append(refusal(item.request.request_id, error))
        return refused

    def _render(self, request: TokenRequest, media: DecodedMedia) -> EngineInput:
        """Run vLLM's processor, which expands each placeholder as the model needs. Raises `InvalidRequest`.

        vLLM's cache of processed media is not used. Its other half is in the engine, and would lack the image if the
        request were aborted in between.
        """
        data = {kind: items for kind, items in (("image", media.images), ("audio", media.sounds)) if items}
        tokens = {"prompt_token_ids": request.prompt.token_ids, "multi_modal_data": data}
        try:
            rendered: EngineInput = self._engine.renderer.render_cmpl([tokens], skip_mm_cache=True)[0]
        except MemoryError:
            raise
        except Exception as error:  # a model's processor may raise anything for media that do not fit
            raise InvalidRequest(f"vLLM rejected the images or sounds: {one_line(error)}", field="messages") from error
        return rendered

    def _grammar_compiler(self, model: ModelFiles) -> GrammarCompiler[str] | None:
        """Return the compiler that tries each grammar first. vLLM would compile it in this process, without limits."""
        if model.path is None or not (model.path / TOKENIZER_FILE).exists():
            return None
        vocabulary = Vocabulary(str(model.path / TOKENIZER_FILE), self._capabilities.vocab_size, self._eos_token_ids)
        return GrammarCompiler(vocabulary, str, time_limit=_TRIAL_SECONDS, cpu_limit=_GRAMMAR_SECONDS)


@dataclass(slots=True)
class _Running:
    """A sequence, vLLM's record of it, and whether it has had an output."""

    request: TokenRequest
    record: Request
    begun: bool = False


def _unsupported_by(config: VllmConfig) -> Iterator[str]:
    """Yield the fields that vLLM does not support in this configuration."""
    if typical_processor(config) is None:
        yield "typical_p"
    if not caps_thoughts(config):
        yield "thinking_token_budget"
    # Without a GPU, vLLM's LoRA code assumes that every row of logits is sampled. A step with two requests fails:
    # https://github.com/vllm-project/vllm/issues/16668
    if config.lora_config is not None and config.device_config.device_type != "cuda":
        yield "prompt_logprobs"
    if config.device_config.device_type == "cpu" and config.scheduler_config.enable_chunked_prefill:
        yield "seed"  # see engine_args.py


# vLLM's own statistics would cost time in every step. Its scheduler keeps the same counts in its record of a request.


def _counts_of_lookup(record: Request, num_cached_tokens: int) -> EngineCounters:
    """Return the counts of the prompt's lookup in the prefix cache."""
    return EngineCounters(prefix_cache_queries=record.num_prompt_tokens, prefix_cache_hits=num_cached_tokens)


def _counts_of_run(record: Request) -> EngineCounters:
    """Return the counts of a sequence that has ended, except those of its lookup."""
    speculation = record.spec_decode_metrics
    if speculation is None:
        return EngineCounters(num_preemptions=record.num_preemptions)
    return EngineCounters(
        spec_decode_num_draft_tokens=speculation.num_draft_tokens,
        spec_decode_num_accepted_tokens=sum(tokens * steps for tokens, steps in enumerate(speculation.histogram)),
        num_preemptions=record.num_preemptions,
    )
