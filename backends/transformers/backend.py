"""The transformers adapter: loads a model and serves it with a paged KV cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import WatermarkLogitsProcessor

from backends.base import ModelFiles
from backends.max_model_len import choose_max_model_len
from backends.paged.adapter_cache import AdapterCache
from backends.paged.backend import MAX_LOGPROBS, PagedBackend
from backends.paged.memory import available_on_cpu, available_on_gpu, choose_num_blocks, free_memory
from backends.paged.options import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_MAX_LORA_RANK,
    DEFAULT_MAX_LORAS,
    DEFAULT_PREFILL_TOKENS,
)
from backends.pooling.pooler import Pooler
from backends.transformers import DECLARATION
from backends.transformers.heads import ChatEmbedder
from backends.transformers.images import ImageProcessor
from backends.transformers.kv_cache import BLOCK_SIZE
from backends.transformers.loading import choose_runner, load_model, position_limit, sequential_runner
from backends.transformers.lora import read_adapter
from backends.transformers.options import TransformersOptions
from backends.transformers.pooling_backend import PoolingBackend
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.thinking import ThinkingMarks
from lmi_handlers.media.files import max_images
from lmi_handlers.text.bundle import TOKENIZER_FILE, load_processor

GREENLIST_RATIO = 0.5
"""TGI's value, so that existing watermark detectors work. The library's default is 0.25."""

_POOLING = {"last": "lasttoken", "mean": "mean"}
"""sentence-transformers' names for the values of `option.chat_embeddings`."""


class TransformersBackend(PagedBackend):
    """Serves any causal language model of the transformers library.

    `kv_cache_memory_bytes`, `gpu_memory_utilization`, `max_loras`, `max_cpu_loras` and `max_lora_rank` are the options
    of these names, as is `chat_embeddings`. `processor` is the library's processor for the model's images.
    The other arguments are those of `PagedBackend`.
    """

    def __init__(
        self,
        model: Any,
        *,
        eos_token_ids: tuple[int, ...] = (),
        max_model_len: int | None = None,
        max_batch_size: int = DEFAULT_BATCH_SIZE,
        max_prefill_tokens: int = DEFAULT_PREFILL_TOKENS,
        kv_cache_memory_bytes: str | None = None,
        gpu_memory_utilization: float | None = None,
        enable_prefix_caching: bool = True,
        prompt_lookup_num_tokens: int = 0,
        tokenizer_file: Path | None = None,
        thinking: ThinkingMarks | None = None,
        processor: Any | None = None,
        max_loras: int = DEFAULT_MAX_LORAS,
        max_cpu_loras: int | None = None,
        max_lora_rank: int = DEFAULT_MAX_LORA_RANK,
        chat_embeddings: Literal["last", "mean"] | None = None,
    ) -> None:
        embeddings: torch.Tensor = model.get_input_embeddings().weight
        vocab_size, device = embeddings.shape[0], embeddings.device
        length = choose_max_model_len(position_limit(model), max_model_len)

        def num_blocks(bytes_per_block: int) -> int:
            free, available = _memory(device, gpu_memory_utilization)
            return choose_num_blocks(
                kv_cache_memory_bytes,
                bytes_per_block=bytes_per_block,
                block_size=BLOCK_SIZE,
                max_num_seqs=max_batch_size,
                max_model_len=length,
                free=free,
                available=available,
            )

        attention = model.config._attn_implementation  # noqa: SLF001 (there is no public way to read it)
        images = None
        if getattr(processor, "image_processor", None) is not None:
            from backends.media_preparer import MediaPreparer

            images = MediaPreparer(ImageProcessor(processor, model.dtype).process)
        # Image models have their own positions and masks, which only the library's own generation code handles.
        choose = sequential_runner if images is not None else partial(choose_runner, max_model_len=length)
        runner = choose(model, num_blocks=num_blocks, max_loras=max_loras)
        self._embedder = None
        if chat_embeddings is not None:
            head = ChatEmbedder(model, Pooler((_POOLING[chat_embeddings],)), attention)
            self._embedder = PoolingBackend(head, max_model_len=length, packs=False)
        embeds = None if self._embedder is None else self._embedder.capabilities
        read = partial(read_adapter, shapes=runner.lora.shapes, max_rank=max_lora_rank, dtype=model.dtype)
        super().__init__(
            runner,
            Capabilities(
                backend=DECLARATION.name,
                max_model_len=length,
                max_num_seqs=max_batch_size,
                vocab_size=vocab_size,
                max_logprobs=MAX_LOGPROBS,
                unsupported=tuple(DECLARATION.unsupported),
                device=device.type,
                dtype=str(model.dtype).removeprefix("torch."),
                takes_images=images is not None,
                takes_cache_salt=True,
                pooling_tasks=() if embeds is None else embeds.pooling_tasks,
                pools_beside_text=embeds is not None,
                embedding_size=None if embeds is None else embeds.embedding_size,
                pooling="" if embeds is None else embeds.pooling,
            ),
            eos_token_ids=eos_token_ids,
            tokenizer_file=tokenizer_file,
            max_prefill_tokens=max_prefill_tokens,
            enable_prefix_caching=enable_prefix_caching,
            prompt_lookup_num_tokens=prompt_lookup_num_tokens,
            images=images,
            watermark=lambda: WatermarkLogitsProcessor(vocab_size, device=device, greenlist_ratio=GREENLIST_RATIO),
            adapters=AdapterCache(read, max_loras=max_loras, max_cpu_loras=max_cpu_loras),
            thinking=thinking,
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
        options = properties.options_of(TransformersOptions)
        backend = cls(
            loaded,
            eos_token_ids=model.eos_token_ids,
            max_model_len=properties.max_model_len,
            max_batch_size=properties.max_rolling_batch_size or DEFAULT_BATCH_SIZE,
            max_prefill_tokens=properties.max_rolling_batch_prefill_tokens or DEFAULT_PREFILL_TOKENS,
            kv_cache_memory_bytes=properties.kv_cache_memory_bytes,
            gpu_memory_utilization=properties.gpu_memory_utilization,
            enable_prefix_caching=options.enable_prefix_caching is not False,
            prompt_lookup_num_tokens=options.prompt_lookup_num_tokens or 0,
            tokenizer_file=tokenizer_file if tokenizer_file.exists() else None,
            thinking=model.thinking,
            processor=processor,
            max_loras=properties.max_loras or DEFAULT_MAX_LORAS,
            max_cpu_loras=properties.max_cpu_loras,
            max_lora_rank=properties.max_lora_rank or DEFAULT_MAX_LORA_RANK,
            chat_embeddings=properties.chat_embeddings,
        )
        backend.add_adapters(model.adapters)
        report(LoadPhase.WARM_UP)
        backend.warm_up()
        backend.open_prefix_file(options, model)
        return backend

    def add_request(self, request: TokenRequest) -> None:
        """Queue a sequence, or a prompt to embed."""
        if request.pooling_params is not None and self._embedder is not None:
            self._embedder.add_request(request)
        else:
            super().add_request(request)

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        if self._embedder is not None:
            self._embedder.abort(request_id)

    def step(self) -> list[TokenOutput]:
        """Run one forward pass and choose tokens from its logits, which only inference mode may overwrite.

        If prompts wait to be embedded, a batch of them is computed, too.
        """
        with torch.inference_mode():
            outputs = super().step()
        return outputs if self._embedder is None else outputs + self._embedder.step()

    @property
    def progress(self) -> int:
        """Grows with every forward pass, and with every layer computed during one."""
        return super().progress + (0 if self._embedder is None else self._embedder.progress)


def _memory(device: torch.device, gpu_memory_utilization: float | None) -> tuple[int | None, int | None]:
    """Return the bytes of memory that are free, and those that the KV cache may take by default."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return free, available_on_gpu(free, total, gpu_memory_utilization)
    return (on_cpu := free_memory()), available_on_cpu(on_cpu)
