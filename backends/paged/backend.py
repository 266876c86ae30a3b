"""The adapter for runners of ours: schedules sequences, computes logits and chooses tokens."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from backends.base import Backend, ModelFiles
from backends.grammar import GrammarMatcher, GrammarMatchers, Vocabulary
from backends.grammar_compiler import GrammarCompiler
from backends.paged.adapter_cache import AdapterCache
from backends.paged.block_pool import BlockPool
from backends.paged.generation import RunningSequence
from backends.paged.options import DEFAULT_PREFILL_TOKENS, DEFAULT_PREFIX_CACHE_FILE_BYTES, PagedOptions
from backends.paged.prefix_file import IDENTITY_BYTES, PrefixFile, Unusable
from backends.paged.prefix_store import PrefixStore, Restoring
from backends.paged.prompt_lookup import PromptLookup
from backends.paged.runner import Runner
from backends.paged.scheduler import Scheduler
from backends.paged.sequence import Sequence, SequenceChunk
from backends.paged.step_budget import StepBudget
from backends.sampling.bad_words import BadWords
from backends.sampling.made_once import MadeOnce
from backends.sampling.sampler import Sampled, SamplerState, sample_drafts
from backends.sampling.thinking import ThinkingCap
from backends.waiting_sequences import Prepared, WaitingSequences, refusal
from lmi_handlers.config.sizes import parse_bytes
from lmi_handlers.core.capabilities import Capabilities, check_continued_length, check_prompt
from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.errors import ConfigError, InvalidRequest, RequestError, RequestFailed
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.thinking import ThinkingMarks

if TYPE_CHECKING:
    from backends.media_preparer import MediaPreparer

logger = logging.getLogger(__name__)

MAX_LOGPROBS = 20
LEAST_EXTRA_TOKENS = 8
"""Tokens of prompts and drafts in every step, however long they take."""
IDLE_SECONDS = 1.0
"""Time without sequences after which the memory of unused blocks is given back."""
WARM_UP_TOKENS = 64
_WARM_UP_SAMPLING = SamplingParams(logprobs=1)
UNUSED_SECONDS = 60.0
"""Time after which a cached prefix that nobody has used no longer keeps its memory, if the engine is idle."""


class PreparedImages(Protocol):
    """A prompt with images: its tokens including those of the images, and arguments for its first forward pass."""

    @property
    def token_ids(self) -> list[int]: ...
    @property
    def model_kwargs(self) -> Mapping[str, Any]: ...


_Prepared = Prepared[GrammarMatcher, PreparedImages]


class PagedBackend(Backend):
    """Continuous batching over a `Runner`.

    Each step computes the next token of every running sequence and a part of the waiting prompts. Sequences wait
    separately until their grammar is compiled, their images are prepared and their adapter is in memory.

    `capabilities` are those of the model. The size of the KV cache may lower `max_model_len`. `tokenizer_file` is a
    tokenizer.json; if it does not exist, grammars and bad words are not supported. `images` prepares prompts with
    images, and `watermark` makes a processor for the first request that asks for one. `adapters` are given to the
    runner with the sequences that use them; None if it supports none. `thinking` are the model's marks, if known.
    """

    measures_steps = True

    def __init__(
        self,
        runner: Runner,
        capabilities: Capabilities,
        *,
        eos_token_ids: tuple[int, ...] = (),
        tokenizer_file: Path | None = None,
        max_prefill_tokens: int = DEFAULT_PREFILL_TOKENS,
        enable_prefix_caching: bool = True,
        prompt_lookup_num_tokens: int = 0,
        images: MediaPreparer[Any] | None = None,
        watermark: Callable[[], Any] | None = None,
        adapters: AdapterCache | None = None,
        thinking: ThinkingMarks | None = None,
    ) -> None:
        self._runner = runner
        self._adapters = adapters
        self._awaiting_adapter: dict[str, _Prepared] = {}
        self._eos_token_ids = frozenset(eos_token_ids)
        self._prompt_lookup_num_tokens = prompt_lookup_num_tokens
        self._images = images
        self._thinking = thinking
        self._make_watermark = watermark
        self._watermark: Any | None = None
        self._pool = BlockPool(runner.num_blocks)
        self._scheduler = Scheduler(
            self._pool,
            runner.block_size,
            max_num_seqs=capabilities.max_num_seqs,
            enable_prefix_caching=enable_prefix_caching and runner.shares_blocks,
            takes_partial_prompts=runner.takes_partial_prompts,
        )
        self._scheduler.copy_block = self._copy_block
        self._budget = StepBudget(max_prefill_tokens, LEAST_EXTRA_TOKENS)
        self._generations: dict[str, RunningSequence] = {}
        self._waiting_sequences: WaitingSequences[GrammarMatcher, PreparedImages] = WaitingSequences()
        self._prefixes: PrefixStore | None = None
        self._restoring: dict[str, tuple[_Prepared, Restoring]] = {}
        self._progress = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0
        self._last_step = time.monotonic()
        self._made_once = MadeOnce()
        self._bad_words: BadWords | None = None
        self._grammars: GrammarCompiler[GrammarMatcher] | None = None
        if tokenizer_file is not None and tokenizer_file.exists():
            self._bad_words = BadWords(tokenizer_file, runner.vocab_size)
            self._grammars = self._grammar_compiler(tokenizer_file)
        needs = {
            "bad_words": self._bad_words,
            "structured_outputs": self._grammars,
            "watermark": watermark,
            "adapters": adapters,
        }
        self._capabilities = msgspec.structs.replace(
            capabilities,
            max_model_len=min(capabilities.max_model_len, runner.num_blocks * runner.block_size),
            continues=True,
            block_size=runner.block_size,
            num_blocks=runner.num_blocks,
            max_loras=None if adapters is None else adapters.max_loras,
            unsupported=tuple(
                dict.fromkeys((*capabilities.unsupported, *(name for name, needed in needs.items() if needed is None)))
            ),
        )
        logger.info(
            "model loaded",
            extra={
                "runner": type(runner).__name__,
                "dtype": capabilities.dtype,
                "device": capabilities.device,
                "max_model_len": self._capabilities.max_model_len,
                "kv_cache_tokens": runner.num_blocks * runner.block_size,
            },
        )

    def warm_up(self) -> None:
        """Compute a prompt and a token, so that the first request need not wait until caches are filled and modules imported.

        Both are done twice, and the second time is measured.
        """
        length = min(WARM_UP_TOKENS, self._capabilities.max_model_len) - 1
        if length < 1:
            return
        sequence = Sequence("warm-up", [0] * (length + 1), length + 1, prompt_len=length)
        sequence.blocks = list(range(-(-(length + 1) // self._runner.block_size)))
        chunks = SequenceChunk(sequence, 0, [0] * length, 1), SequenceChunk(sequence, length, [0], 1)
        for chunk in chunks:
            logits = self._runner.forward([chunk])
            sample_drafts(logits, [SamplerState(_WARM_UP_SAMPLING, [0], frozenset())], [[]])
        for chunk, num_generating, num_extra_tokens in zip(chunks, (0, 1), (length, 0), strict=True):
            began = time.monotonic()
            self._runner.forward([chunk])
            self._budget.observe(
                time.monotonic() - began, num_generating=num_generating, num_extra_tokens=num_extra_tokens
            )
        self._runner.release(sequence)
        self._runner.reclaim(sequence.blocks)

    def open_prefix_file(self, options: PagedOptions, model: ModelFiles) -> None:
        """Keep shared prefixes in the file of `option.prefix_cache_file`, if that is set and can be used.

        Raises `ConfigError` if the options are wrong, or if this model's cache is not in blocks.
        """
        if options.prefix_cache_file is None:
            return
        path = Path(options.prefix_cache_file)
        if not path.is_absolute():
            raise ConfigError(f"option.prefix_cache_file has value {str(path)!r}: must be an absolute path")
        if model.engine:
            path = path.with_name(f"{path.name}-{model.engine}")
        size = options.prefix_cache_file_bytes or DEFAULT_PREFIX_CACHE_FILE_BYTES
        max_bytes = parse_bytes(size, "option.prefix_cache_file_bytes")
        if options.enable_prefix_caching is False:
            raise ConfigError("option.prefix_cache_file needs option.enable_prefix_caching")
        if not self._runner.shares_blocks:
            raise ConfigError(
                "option.prefix_cache_file: this model is computed without blocks that prompts could share"
            )
        try:
            file = PrefixFile(
                path, identity=self._identity(model), block_bytes=self._runner.block_bytes, max_bytes=max_bytes
            )
        except Unusable as error:
            logger.warning("the prefix cache file is not used", extra={"file": str(path), "reason": str(error)})
            return
        self._prefixes = PrefixStore(file, self._runner, self._pool)
        self._scheduler.secret = file.secret
        self._scheduler.on_shared = self._keep_shared
        logger.info("prefix cache file opened", extra={"file": str(path), "blocks": len(file)})

    def _identity(self, model: ModelFiles) -> bytes:
        """Return what tells this model's keys and values from others': its files, its type, and what it computes here.

        The last depends on the weights, the layout of a block, the libraries and the processor.
        """
        size = self._runner.block_size
        num_blocks = min(2, self._runner.num_blocks, self._capabilities.max_model_len // size)
        length = num_blocks * size
        tokens = [position * self._runner.vocab_size // max(1, length) for position in range(length)]
        sequence = Sequence("probe", tokens, length)
        sequence.blocks = list(range(num_blocks))
        if tokens:
            self._runner.forward([SequenceChunk(sequence, 0, tokens, 1)])
        name = "" if model.cache is None else model.cache.name
        parts = [name.encode(), self._capabilities.backend.encode(), self._capabilities.dtype.encode()]
        parts += [self._runner.read_block(block) for block in sequence.blocks]
        self._runner.release(sequence)
        self._runner.reclaim(sequence.blocks)
        return _digest_of_parts(parts)[:IDENTITY_BYTES]

    def _keep_shared(self, sequence: Sequence) -> None:
        # Another adapter may have the same name after a restart.
        if self._prefixes is not None and sequence.adapter is None:
            self._prefixes.keep(sequence.digests[: sequence.num_computed // self._runner.block_size])

    @property
    def capabilities(self) -> Capabilities:
        if self._adapters is None:
            return self._capabilities
        return msgspec.structs.replace(self._capabilities, adapters=self._adapters.names)

    def add_request(self, request: TokenRequest) -> None:
        """Queue a sequence. Errors in its grammar or images are returned by a later `step`."""
        wanted = request.sampling_params.structured_outputs
        grammar = None if wanted is None or self._grammars is None else self._grammars.submit(wanted)
        images = None
        if self._images is not None and request.prompt.media_prompt is not None:
            images = self._images.submit(request)
        if grammar is None and images is None:
            self._start_or_wait(Prepared(request, None, None))
        else:
            self._waiting_sequences.add(request, grammar, images)

    def abort(self, request_id: str) -> None:
        waited = self._waiting_sequences.discard(request_id)
        for others in (self._awaiting_adapter, self._restoring):
            waited = others.pop(request_id, None) is not None or waited
        if not waited and request_id in self._generations:
            generation = self._generations[request_id]
            self._scheduler.keep_end(generation.sequence)
            self._end(generation)

    def step(self) -> list[TokenOutput]:
        """Run one forward pass over the chunks that the scheduler picks, at the expense of those that they belong to."""
        began = time.monotonic()
        outputs = self._take_prepared()
        if not self._generations:
            if not outputs:
                reading: list[Future[Any]] = [] if self._adapters is None else self._adapters.reading
                self._waiting_sequences.wait(reading + [restoring.blocks for _, restoring in self._restoring.values()])
                self._progress += 1  # preparing has its own time limits
            return outputs
        num_generating = self._scheduler.num_generating
        chunks, preempted = self._scheduler.schedule(self._budget.tokens(num_generating, self._scheduler.num_prompts))
        for sequence in preempted:
            self._runner.release(sequence)
        try:
            return outputs + self._compute(chunks, num_generating, preempts=bool(preempted))
        finally:
            _charge(chunks, time.monotonic() - began)

    def _compute(self, chunks: list[SequenceChunk], num_generating: int, *, preempts: bool) -> list[TokenOutput]:
        """Compute the chunks, and choose the next tokens. `preempts` says that sequences had to make room for them."""
        began = time.monotonic()
        try:
            logits = self._runner.forward(chunks)
        except MemoryError as error:
            return [self._fail_largest(chunks, error)]
        finally:
            if self._prefixes is not None:
                self._prefixes.spill()
            self._progress += 1
            self._last_step = time.monotonic()
        if not preempts:  # otherwise fewer have generated
            num_extra_tokens = sum(len(chunk.token_ids) for chunk in chunks) - num_generating
            self._budget.observe(
                self._last_step - began, num_generating=num_generating, num_extra_tokens=num_extra_tokens
            )
        return self._choose_tokens(chunks, logits, self._budget.draft_cost(num_generating))

    @property
    def num_preparing(self) -> int:
        """Number of sequences that wait for their grammar, images, adapter or prefix, at most `max_num_seqs`."""
        waiting = len(self._waiting_sequences) + len(self._awaiting_adapter) + len(self._restoring)
        return min(waiting, self._capabilities.max_num_seqs)

    @property
    def progress(self) -> int:
        """Grows with every forward pass, and with every layer computed during one."""
        return self._progress + self._runner.layers_computed

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that sequences are using."""
        return 1 - self._pool.num_free / self._pool.num_blocks

    @property
    def counters(self) -> EngineCounters:
        return EngineCounters(
            prefix_cache_queries=self._scheduler.num_queried_tokens,
            prefix_cache_hits=self._scheduler.num_hit_tokens,
            external_prefix_cache_queries=0 if self._prefixes is None else self._prefixes.num_queried_tokens,
            external_prefix_cache_hits=0 if self._prefixes is None else self._prefixes.num_hit_tokens,
            spec_decode_num_draft_tokens=self._num_draft_tokens,
            spec_decode_num_accepted_tokens=self._num_accepted_tokens,
            num_preemptions=self._scheduler.num_preemptions,
        )

    def on_idle(self) -> None:
        """Give the memory of unused blocks back, and shared prefixes to their file."""
        if self._prefixes is not None:
            self._prefixes.spill()
        if time.monotonic() - self._last_step >= IDLE_SECONDS and (blocks := self._pool.reclaimable(UNUSED_SECONDS)):
            self._runner.reclaim(blocks)

    def close(self) -> None:
        """Stop the processes that compile grammars and prepare images, and close the file of prefixes."""
        if self._prefixes is not None:
            self._prefixes.close()
        if self._grammars is not None:
            self._grammars.close()
        if self._images is not None:
            self._images.close()

    def add_adapters(self, folders: Mapping[str, Path]) -> None:
        """Read the adapters of a model that is being loaded. Raises `ConfigError` if one cannot be used."""
        for name, folder in folders.items():
            try:
                self.add_adapter(name, folder, self.read_adapter(name, folder))
            except InvalidRequest as error:  # noqa: PERF203  it ends the loop
                raise ConfigError(f"option.enable_lora: {error}") from error

    def read_adapter(self, name: str, folder: Path) -> Any:
        """Read and check an adapter. See `Backend`."""
        return super().read_adapter(name, folder) if self._adapters is None else self._adapters.read(name, folder)

    def add_adapter(self, name: str, folder: Path, adapter: Any, *, pinned: bool = False) -> None:
        """Add an adapter. See `Backend`."""
        assert self._adapters is not None  # noqa: S101  otherwise `read_adapter` has raised
        self._adapters.add(name, folder, adapter, pinned=pinned)

    def remove_adapter(self, name: str) -> None:
        """Forget an adapter. See `Backend`."""
        if self._adapters is not None:
            self._adapters.remove(name)

    # Sequences

    def _take_prepared(self) -> list[TokenOutput]:
        """Start the sequences that are ready, and return an error output for each one that failed."""
        prepared, refused = self._waiting_sequences.collect()
        awaiting, self._awaiting_adapter = self._awaiting_adapter, {}
        starts = [(item, self._start_or_wait) for item in [*awaiting.values(), *prepared]]
        starts += [(item, self._start) for item in self._restored()]
        for item, start in starts:
            try:
                start(item)
            except InvalidRequest as error:  # noqa: PERF203  one failure must not affect the others
                refused.append(refusal(item.request.request_id, error))
        return refused

    def _start_or_wait(self, item: _Prepared) -> None:
        """Start a sequence, unless it has to wait for its adapter or its prefix. Raises `InvalidRequest`.

        Adapters get their places in the batch in order of arrival, so that none waits for ever.
        """
        name = item.request.prompt.adapter
        if name is None or self._adapters is None:
            restoring = self._restore(item)
            if restoring is None:
                self._start(item)
            else:
                self._restoring[item.request.request_id] = item, restoring
            return
        adapter = None
        if not self._awaiting_adapter:
            in_use = {running.sequence.adapter for running in self._generations.values()} - {None}
            adapter = self._adapters.get(name, in_use)
        if adapter is None:
            self._awaiting_adapter[item.request.request_id] = item
        else:
            self._start(item, adapter)

    def _restore(self, item: _Prepared) -> Restoring | None:
        """Start to read a prompt's beginning from the file, as far as it may be shared."""
        request = item.request
        token_ids = [*(request.prompt.token_ids if item.media is None else item.media.token_ids), *request.generated]
        if self._prefixes is None or request.sampling_params.prompt_logprobs is not None:
            return None
        return self._prefixes.restore(self._scheduler.digests(token_ids[:-1], self._cache_key(request), []))

    def _restored(self) -> list[_Prepared]:
        """Remove and return the sequences that have waited for the file for long enough."""
        if self._prefixes is None:
            return []
        done = [name for name, (_, restoring) in self._restoring.items() if self._prefixes.advance(restoring)]
        return [self._restoring.pop(name)[0] for name in done]

    def _start(self, item: _Prepared, adapter: Any | None = None) -> None:
        """Raises `InvalidRequest` if the prompt with its images is too long, or its grammar forbids what was generated."""
        request, images = item.request, item.media
        params = request.sampling_params
        token_ids = list(request.prompt.token_ids if images is None else images.token_ids)
        if images is not None:
            check_prompt(token_ids, self._capabilities)
            check_continued_length(len(token_ids), request.generated, self._capabilities)
        max_len = self._capabilities.max_model_len
        sequence = Sequence(
            request.request_id,
            [*token_ids, *request.generated],
            max_len if params.max_tokens is None else min(max_len, len(token_ids) + params.max_tokens),
            first_logit=-1 if params.prompt_logprobs is None else 0,
            cache_key=self._cache_key(request) if self._runner.shares_blocks else b"",
            model_kwargs={} if images is None else images.model_kwargs,
            adapter=adapter,
            meter=request.meter,
            prompt_len=len(token_ids),
        )
        budget, asked_stops = params.thinking_token_budget, params.stop_token_ids
        stops = self._made_once.get(lambda: frozenset(asked_stops), asked_stops)
        held_back = frozenset[int]()
        if params.min_tokens:
            held_back = self._made_once.get(lambda: stops | self._eos_token_ids, stops)
        state = SamplerState(
            params,
            token_ids,
            held_back,
            bad_words=self._bad_words.token_ids(params.bad_words) if self._bad_words else None,
            watermark=self._watermark_processor() if params.watermark else None,
            thinking=None
            if self._thinking is None or budget is None
            else ThinkingCap(self._thinking, budget, token_ids),
        )
        state.grammar = item.grammar
        state.resume(request.generated)
        num_draft = params.prompt_lookup_num_tokens
        if num_draft is None:
            num_draft = self._prompt_lookup_num_tokens
        self._generations[request.request_id] = RunningSequence(
            sequence,
            params,
            state,
            eos_token_ids=self._eos_token_ids,
            stop_token_ids=stops,
            has_images=images is not None,
            # Without partial prompts, a wrong draft would mean computing the sequence again.
            lookup=PromptLookup(num_draft) if num_draft and self._runner.takes_partial_prompts else None,
        )
        self._scheduler.add(sequence)

    def _copy_block(self, source: int, target: int) -> bool:
        if self._runner.block_bytes == 0:
            return False
        self._runner.write_block(target, self._runner.read_block(source))
        return True

    def _end(self, generation: RunningSequence) -> None:
        sequence = generation.sequence
        del self._generations[sequence.request_id]
        self._runner.release(sequence)
        self._scheduler.remove(sequence)

    def _fail(self, generation: RunningSequence, error: RequestError) -> TokenOutput:
        self._end(generation)
        return refusal(generation.sequence.request_id, error)

    def _distrust(self, sequence: Sequence) -> None:
        """Share nothing of what the model has computed for a sequence."""
        sequence.failed = True
        if self._prefixes is not None:
            self._prefixes.forget(sequence.digests)

    def _fail_largest(self, chunks: list[SequenceChunk], error: MemoryError) -> TokenOutput:
        """Fail the sequence that needs most of this step's memory. The others are computed in the next step."""
        largest = max(reversed(chunks), key=lambda chunk: len(chunk.token_ids)).sequence
        logger.error(
            "out of memory; one sequence fails", extra={"tokens": len(largest.token_ids), "reason": str(error)}
        )
        return self._fail(
            self._generations[largest.request_id],
            RequestFailed(
                f"out of memory while computing {len(largest.token_ids)} tokens beside {len(chunks) - 1} other sequences"
            ),
        )

    # Tokens

    def _choose_tokens(self, chunks: list[SequenceChunk], logits: Any, draft_cost: float) -> list[TokenOutput]:
        """Choose the next tokens from the step's logits, `[sum of num_logits, vocabulary]`.

        `draft_cost` is what drafting a token costs, in tokens.
        """
        sampling: list[SequenceChunk] = []
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            start, end = end, end + chunk.num_logits
            generation = self._generations[chunk.sequence.request_id]
            if generation.wants_prompt_logprobs:
                generation.collect_prompt_logprobs(chunk, logits[start:end])
            if chunk.samples:
                sampling.append(chunk)
                rows += range(end - 1 - chunk.num_draft, end)
            else:
                self._scheduler.computed(chunk)
        if not sampling:
            return []
        wanted = logits if len(rows) == end else logits[rows]
        states = [self._generations[chunk.sequence.request_id].state for chunk in sampling]
        chosen = sample_drafts(wanted, states, [chunk.draft for chunk in sampling])
        return [self._advance(chunk, choices, draft_cost) for chunk, choices in zip(sampling, chosen, strict=True)]

    def _advance(self, chunk: SequenceChunk, choices: list[Sampled], draft_cost: float) -> TokenOutput:
        """Append the chosen tokens, all but the last of which are in the draft. Drop the sequence if it ends."""
        generation = self._generations[chunk.sequence.request_id]
        finish_reason: FinishReason | None = None
        appended: list[Sampled] = []
        for choice in choices:
            if choice.error is not None:
                if isinstance(choice.error, RequestFailed):
                    self._distrust(generation.sequence)
                return self._fail(generation, choice.error)
            generation.sequence.append(choice.token_id)
            appended.append(choice)
            finish_reason = generation.finish_reason
            if finish_reason is not None:
                break
        self._scheduler.computed(chunk, len(appended) - 1)
        if chunk.num_draft and generation.lookup is not None:
            self._num_draft_tokens += chunk.num_draft
            self._num_accepted_tokens += len(choices) - 1
            generation.lookup.accepted(
                len(choices) - 1, length=len(generation.sequence.token_ids), cost=chunk.num_draft * draft_cost
            )
        if finish_reason is not None:
            self._end(generation)
        else:
            generation.sequence.draft = generation.draft()
        return generation.output(appended, finish_reason)

    def _grammar_compiler(self, tokenizer_file: Path) -> GrammarCompiler[GrammarMatcher] | None:
        vocab_size = self._runner.vocab_size
        eos_token_ids = tuple(token for token in self._eos_token_ids if token < vocab_size)
        vocabulary = Vocabulary(str(tokenizer_file), vocab_size, eos_token_ids)
        try:
            tokenizer = vocabulary.load()
        except ValueError as error:
            logger.warning("no structured outputs for this tokenizer", extra={"reason": str(error)})
            return None
        return GrammarCompiler(vocabulary, GrammarMatchers(tokenizer, vocab_size))

    def _watermark_processor(self) -> Any:
        if self._watermark is None and self._make_watermark is not None:
            self._watermark = self._make_watermark()
        return self._watermark

    def _cache_key(self, request: TokenRequest) -> bytes:
        """Return what tells prompts with the same tokens apart: the adapter, the client's salt and the images."""
        adapter, salt, images = request.prompt.adapter, request.prompt.cache_salt, request.prompt.media_prompt
        if adapter is None and salt is None and images is None:
            return b""
        parts = [self._adapters.key(adapter) if self._adapters is not None and adapter else b""]
        parts.append(b"" if salt is None else salt.encode("utf-8", "surrogatepass"))  # a salt is never empty
        parts += [] if images is None else [image.data for image in images.images]
        return _digest_of_parts(parts)


def _charge(chunks: list[SequenceChunk], seconds: float) -> None:
    """Divide the time of a step among the requests, by the tokens that were computed for each of them, drafts included."""
    per_token = seconds / sum(len(chunk.token_ids) for chunk in chunks)
    for chunk in chunks:
        chunk.sequence.meter.engine_time += per_token * len(chunk.token_ids)
        chunk.sequence.meter_blocks()


def _digest_of_parts(parts: list[bytes]) -> bytes:
    # Each part's digest has the same length, so no two lists of parts run together.
    return hashlib.blake2b(b"".join(hashlib.blake2b(part).digest() for part in parts)).digest()
