"""The transformers adapter: schedules sequences, runs the model and returns the sampled tokens."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import WatermarkLogitsProcessor

from backends.base import Backend, ModelFiles
from backends.grammar import GrammarMatcher, Vocabulary
from backends.grammar_compiler import GrammarCompiler
from backends.preparing import Preparing, refusal
from backends.sampling.bad_words import BadWords
from backends.sampling.sampler import Sampled, logprobs_and_best, sample
from backends.transformers import DECLARATION
from backends.transformers.fallback import SequentialRunner
from backends.transformers.images import ImageInputs, ImageProcessor
from backends.transformers.loading import choose_max_model_len, choose_runner, load_model
from backends.transformers.options import DEFAULT_BATCH_SIZE
from backends.transformers.runner import Runner
from backends.transformers.sequence import Chunk, Sequence, next_chunk
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities, check_prompt
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.media.images import max_images
from lmi_handlers.text.bundle import load_processor

if TYPE_CHECKING:
    from backends.image_preparer import ImagePreparer

logger = logging.getLogger(__name__)

MAX_LOGPROBS = 20
DEFAULT_PREFILL_TOKENS = 512
TOKENIZER_FILE = "tokenizer.json"
GREENLIST_RATIO = 0.5
"""TGI's value, so that existing watermark detectors work. The library's default is 0.25."""


class TransformersBackend(Backend):
    """A rolling batch over any causal language model of the transformers library.

    Each step computes the next token of every running sequence and up to `max_prefill_tokens` of waiting prompts,
    first come, first served. So a long prompt delays the other sequences only a little per step. Sequences wait
    separately until their grammar is compiled and their images are prepared.

    `tokenizer_file` is a tokenizer.json. Without one, grammars and bad words are not supported. `processor` is the
    library's processor for the model's images.
    """

    def __init__(
        self,
        model: Any,
        *,
        eos_token_ids: tuple[int, ...] = (),
        max_model_len: int | None = None,
        max_batch_size: int = DEFAULT_BATCH_SIZE,
        max_prefill_tokens: int = DEFAULT_PREFILL_TOKENS,
        tokenizer_file: Path | None = None,
        processor: Any | None = None,
    ) -> None:
        embeddings: torch.Tensor = model.get_input_embeddings().weight
        self._device = embeddings.device
        self._dtype = str(model.dtype).removeprefix("torch.")
        self._vocab_size = embeddings.shape[0]
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_model_len = choose_max_model_len(model.config, max_model_len)
        self._max_batch_size = max_batch_size
        self._max_prefill_tokens = max_prefill_tokens
        # Image models have their own positions and masks, which only the library's own generation code handles.
        self._runner: Runner = (
            choose_runner(model, self._max_model_len) if processor is None else SequentialRunner(model)
        )
        self._images: ImagePreparer[ImageInputs] | None = None
        if processor is not None:
            from backends.image_preparer import ImagePreparer

            self._images = ImagePreparer(ImageProcessor(processor, model.dtype).process)
        self._grammars: GrammarCompiler[GrammarMatcher] | None = None
        self._bad_words: BadWords | None = None
        self._watermark: WatermarkLogitsProcessor | None = None
        if tokenizer_file is not None:
            self._bad_words = BadWords(tokenizer_file, self._vocab_size)
            self._grammars = self._grammar_compiler(tokenizer_file)
        self._preparing: Preparing[GrammarMatcher, ImageInputs] = Preparing()
        self._progress = 0
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        logger.info(
            "model loaded",
            extra={
                "runner": type(self._runner).__name__,
                "dtype": self._dtype,
                "device": str(self._device),
                "max_model_len": self._max_model_len,
            },
        )

    @classmethod
    def load(
        cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]
    ) -> TransformersBackend:
        """Load the weights from `model.path`."""
        if model.path is None:
            raise ConfigError("option.model_id: the transformers backend needs a model")
        report(LoadPhase.WEIGHTS)
        loaded = load_model(model.path, properties)
        report(LoadPhase.CHECKING)
        tokenizer_file = model.path / TOKENIZER_FILE
        processor = None
        if max_images(properties.limit_mm_per_prompt) > 0:
            processor = load_processor(model.path, trust_remote_code=properties.trust_remote_code)
        return cls(
            loaded,
            eos_token_ids=model.eos_token_ids,
            max_model_len=properties.max_model_len,
            max_batch_size=properties.max_rolling_batch_size or DEFAULT_BATCH_SIZE,
            max_prefill_tokens=properties.max_rolling_batch_prefill_tokens or DEFAULT_PREFILL_TOKENS,
            tokenizer_file=tokenizer_file if tokenizer_file.exists() else None,
            processor=processor,
        )

    @property
    def capabilities(self) -> Capabilities:
        """All fields except those in `DECLARATION.unsupported` and, without a tokenizer.json, those that need one."""
        needs = {"bad_words": self._bad_words, "structured_outputs": self._grammars}
        return Capabilities(
            backend="transformers",
            max_model_len=self._max_model_len,
            max_num_seqs=self._max_batch_size,
            vocab_size=self._vocab_size,
            max_logprobs=MAX_LOGPROBS,
            unsupported=(*DECLARATION.unsupported, *(name for name, needed in needs.items() if needed is None)),
            device=self._device.type,
            dtype=self._dtype,
            takes_images=self._images is not None,
        )

    def add_request(self, request: TokenRequest) -> None:
        """Queue a sequence. Errors in its grammar or images are returned by a later `step`."""
        wanted = request.sampling_params.structured_outputs
        grammar = None if wanted is None or self._grammars is None else self._grammars.submit(wanted)
        images = None if self._images is None else self._images.submit(request)
        if grammar is None and images is None:
            self._waiting.append(self._sequence(request))
        else:
            self._preparing.add(request, grammar, images)

    def _sequence(self, request: TokenRequest, images: ImageInputs | None = None) -> Sequence:
        """Raises `InvalidRequest` if the prompt with its images is too long."""
        params = request.sampling_params
        if images is not None:
            check_prompt(images.token_ids, self.capabilities)
        return Sequence(
            request,
            max_model_len=self._max_model_len,
            eos_token_ids=self._eos_token_ids,
            bad_words=self._bad_words.token_ids(params.bad_words) if self._bad_words else None,
            watermark=self._watermark_processor() if params.watermark else None,
            images=images,
        )

    def abort(self, request_id: str) -> None:
        """Drop a sequence and free its slot."""
        if self._preparing.discard(request_id):
            return
        for sequences in (self._waiting, self._running):
            for sequence in sequences:
                if sequence.request_id == request_id:
                    sequences.remove(sequence)
                    self._runner.release(sequence)
                    return

    def step(self) -> list[TokenOutput]:
        """Run one forward pass over the chunks that `_schedule` picks."""
        refused = self._take_prepared()
        chunks = self._schedule()
        if not chunks:
            if not refused:
                self._preparing.wait()
                self._progress += 1  # preparing has its own time limits
            return refused
        logits = self._runner.forward(chunks)
        self._progress += 1
        for chunk in chunks:
            chunk.sequence.num_computed = chunk.stop
        if any(chunk.sequence.prompt_logprobs is not None for chunk in chunks):
            _collect_prompt_logprobs(chunks, logits)
        ready = [chunk for chunk in chunks if chunk.samples]
        if not ready:
            return refused
        rows = _last_rows(chunks)
        if len(rows) < logits.shape[0]:
            logits = logits[rows]
        with torch.inference_mode():
            sampled = sample(logits, [chunk.sequence.sampler for chunk in ready])
        return refused + [self._advance(chunk.sequence, choice) for chunk, choice in zip(ready, sampled, strict=True)]

    @property
    def num_preparing(self) -> int:
        """Number of sequences whose grammar or images are being prepared, at most `max_num_seqs`."""
        return min(len(self._preparing), self._max_batch_size)

    @property
    def progress(self) -> int:
        """Grows with every forward pass, and with every layer computed during one."""
        return self._progress + self._runner.layers_computed

    @property
    def kv_cache_usage(self) -> float:
        """Cached tokens, divided by the maximum: a full batch of sequences of maximum length."""
        cached = sum(sequence.num_computed for sequence in tuple(self._running))
        return cached / (self._max_batch_size * self._max_model_len)

    def close(self) -> None:
        """Stop the processes that compile grammars and prepare images."""
        if self._grammars is not None:
            self._grammars.close()
        if self._images is not None:
            self._images.close()

    def _take_prepared(self) -> list[TokenOutput]:
        """Queue the sequences that are ready, and return an error output for each one that failed."""
        prepared, refused = self._preparing.collect()
        for item in prepared:
            try:
                sequence = self._sequence(item.request, item.images)
            except InvalidRequest as error:
                refused.append(refusal(item.request.request_id, error))
                continue
            sequence.sampler.grammar = item.grammar
            self._waiting.append(sequence)
        return refused

    def _schedule(self) -> list[Chunk]:
        """Choose the step's chunks: one token for each running sequence, then prompts until the budget is spent."""
        chunks = [next_chunk(sequence, len(sequence.token_ids)) for sequence in self._running]
        budget = self._max_prefill_tokens
        while self._waiting and budget > 0 and len(self._running) < self._max_batch_size:
            sequence = self._waiting[0]
            left = sequence.prompt_len - sequence.num_computed
            if left > budget and self._runner.takes_partial_prompts:
                chunks.append(next_chunk(sequence, sequence.num_computed + budget))
                break
            if left > budget < self._max_prefill_tokens:
                break  # a prompt that cannot be split waits for a step with the full budget
            chunks.append(next_chunk(sequence, sequence.prompt_len))
            budget -= left
            self._running.append(self._waiting.popleft())
        return chunks

    def _advance(self, sequence: Sequence, sampled: Sampled) -> TokenOutput:
        """Append the sampled token. Drop the sequence if it ends."""
        if sampled.error is not None:
            sequence.failed = True
            self._finish(sequence)
            return TokenOutput(
                request_id=sequence.request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=sampled.error
            )
        sequence.token_ids.append(sampled.token_id)
        finish_reason = sequence.finish_reason
        if finish_reason is not None:
            self._finish(sequence)
        prompt_logprobs, sequence.prompt_logprobs = sequence.prompt_logprobs, None
        prompt_top_logprobs, sequence.prompt_top_logprobs = sequence.prompt_top_logprobs, None
        return TokenOutput(
            request_id=sequence.request_id,
            token_ids=[sampled.token_id],
            logprobs=None if sampled.logprob is None else [sampled.logprob],
            top_logprobs=None if sampled.top is None else [sampled.top],
            prompt_logprobs=prompt_logprobs,
            prompt_top_logprobs=prompt_top_logprobs,
            finish_reason=finish_reason,
            num_prompt_tokens=sequence.prompt_len if sequence.has_images else None,
        )

    def _finish(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._runner.release(sequence)

    def _grammar_compiler(self, tokenizer_file: Path) -> GrammarCompiler[GrammarMatcher] | None:
        eos_token_ids = tuple(token for token in self._eos_token_ids if token < self._vocab_size)
        vocabulary = Vocabulary(str(tokenizer_file), self._vocab_size, eos_token_ids)
        try:
            tokenizer = vocabulary.load()
        except ValueError as error:
            logger.warning("no structured outputs for this tokenizer", extra={"reason": str(error)})
            return None
        return GrammarCompiler(vocabulary, lambda text: GrammarMatcher(tokenizer, text, self._vocab_size))

    def _watermark_processor(self) -> WatermarkLogitsProcessor:
        """Created by the first request that uses it, because its table takes 8 MB."""
        if self._watermark is None:
            self._watermark = WatermarkLogitsProcessor(
                self._vocab_size, device=self._device, greenlist_ratio=GREENLIST_RATIO
            )
        return self._watermark


def _last_rows(chunks: list[Chunk]) -> list[int]:
    """Return, for each chunk that samples, the row of logits for its next token."""
    rows, end = [], 0
    for chunk in chunks:
        end += chunk.num_logits
        if chunk.samples:
            rows.append(end - 1)
    return rows


def _collect_prompt_logprobs(chunks: list[Chunk], logits: torch.Tensor) -> None:
    """Append prompt logprobs to each sequence that wants them.

    Each position of a chunk gives the logprob of the prompt token that follows it.
    """
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk.num_logits
        sequence = chunk.sequence
        if sequence.prompt_logprobs is None:
            continue
        following = sequence.token_ids[chunk.first_logit + 1 : min(chunk.stop + 1, sequence.prompt_len)]
        tokens = torch.tensor(following, dtype=torch.long, device=logits.device)
        counts = [sequence.params.prompt_logprobs or 0] * len(following)
        logprobs, best = logprobs_and_best(logits[start : start + len(following)].float(), tokens, counts)
        sequence.prompt_logprobs += logprobs
        if sequence.prompt_top_logprobs is not None:
            sequence.prompt_top_logprobs += best
