"""The TensorRT-LLM adapter: capabilities, requests, and translation of errors."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from tensorrt_llm import LLM
from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.executor.utils import RequestError

from backends.base import Backend, ModelFiles
from backends.tensorrt_llm import DECLARATION
from backends.tensorrt_llm.actor import LLMActor
from backends.tensorrt_llm.delta_reader import DeltaReader
from backends.tensorrt_llm.llm_args import choose_max_model_len, llm_arguments, max_batch_size
from backends.tensorrt_llm.lora import lora_requests
from backends.tensorrt_llm.options import TensorRTLLMOptions
from backends.tensorrt_llm.sampling import engine_sampling_params
from backends.token_limits import token_limits
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.errors import ConfigError, EngineDead, InvalidRequest
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest

MAX_LOGPROBS = 0
"""The sampler returns only the log probability of the sampled token."""

MAX_PROMPT_LOGPROBS = 20
"""Computed here from the prompt's logits. The limit is the same as in other engines."""

_WAIT = 0.01


class TensorRTLLMBackend(Backend):
    """Submits requests to TensorRT-LLM, which batches them itself, and collects the outputs.

    `max_input_len` and `max_output_len` are the limits for prompt and answer, None if unlimited. `guided_decoding` is
    true if the engine was started with a grammar library. Without one it silently ignores grammars. `prefix_caching` is
    true if prompts are looked up in the prefix cache. `adapters` are the LoRA adapters that the engine was started
    with, by name.
    """

    def __init__(
        self,
        llm: LLM,
        model: ModelFiles,
        *,
        max_model_len: int,
        max_num_seqs: int,
        max_input_len: int | None = None,
        max_output_len: int | None = None,
        guided_decoding: bool = False,
        prefix_caching: bool = True,
        adapters: Mapping[str, LoRARequest] | None = None,
    ) -> None:
        self._llm = llm
        self._actor = LLMActor(llm)
        self._eos_token_ids = model.eos_token_ids
        self._vocab_size = model.vocab_size
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._max_input_len = max_input_len
        self._max_output_len = max_output_len
        self._guided_decoding = guided_decoding
        self._adapters = dict(adapters or {})
        self._prefix_caching = prefix_caching
        self._sequences: dict[str, DeltaReader] = {}
        self._counters = EngineCounters()

    @classmethod
    def load(
        cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]
    ) -> TensorRTLLMBackend:
        """Start the engine on the checkpoint in `model.path`."""
        if model.path is None:
            raise ConfigError("option.model_id: the tensorrt_llm backend needs a model")
        if not model.path.is_dir():
            raise ConfigError(
                f"option.model_id: TensorRT-LLM needs the directory of a checkpoint, not {model.path.name}"
            )
        max_model_len = choose_max_model_len(model.path, properties)
        report(LoadPhase.WEIGHTS)
        try:
            adapters = lora_requests(model.adapters)
            llm = LLM(**llm_arguments(model.path, properties, max_model_len=max_model_len, adapters=model.adapters))
        except ConfigError:
            raise
        except Exception as error:  # the operator must hear of any failure to start
            reason = " ".join(str(error).split()) or type(error).__name__
            verdict = ConfigError(f"option.model_id: TensorRT-LLM cannot serve {model.path}: {reason}")
            raise load_failure(verdict, error) from error
        options = properties.options_of(TensorRTLLMOptions)
        return cls(
            llm,
            model,
            max_model_len=max_model_len,
            max_num_seqs=max_batch_size(properties),
            max_input_len=options.max_input_len,
            max_output_len=options.max_output_len,
            guided_decoding=properties.guided_decoding_backend is not None,
            prefix_caching=options.enable_kv_cache_reuse is not False,
            adapters=adapters,
        )

    @property
    def capabilities(self) -> Capabilities:
        """All fields except those in `DECLARATION.unsupported`. Alternatives to generated tokens are not supported."""
        missing = () if self._guided_decoding else ("structured_outputs",)
        return Capabilities(
            backend="tensorrt_llm",
            max_model_len=self._max_model_len,
            max_num_seqs=self._max_num_seqs,
            vocab_size=self._vocab_size,
            max_input_len=self._max_input_len,
            max_output_len=self._max_output_len,
            max_logprobs=MAX_LOGPROBS,
            max_prompt_logprobs=MAX_PROMPT_LOGPROBS,
            unsupported=(*DECLARATION.unsupported, *missing),
            adapters=tuple(self._adapters),
            takes_cache_salt=True,
        )

    def add_request(self, request: TokenRequest) -> None:
        """Start a sequence. Raises `InvalidRequest` if the engine refuses it, and `EngineDead` if it has stopped."""
        sequence = DeltaReader(request, self._eos_token_ids)
        options: dict[str, Any] = {"cache_salt": request.prompt.cache_salt}
        if request.sampling_params.prompt_logprobs is not None:
            # Cached prompt tokens are not computed again and have no logits. With a new salt nothing is cached.
            options["cache_salt"] = secrets.token_hex(8)
        if request.prompt.adapter is not None:
            options["lora_request"] = self._adapters[request.prompt.adapter]
        max_tokens, min_tokens = token_limits(request, self.capabilities)
        try:
            sampling_params = engine_sampling_params(
                request.sampling_params,
                max_tokens=max_tokens,
                min_tokens=min_tokens,
                eos_token_ids=self._eos_token_ids,
                vocab_size=self._vocab_size,
            )
            self._actor.submit(sequence, request.prompt.token_ids, sampling_params, **options)
        except (RequestError, ValueError) as error:
            raise InvalidRequest(" ".join(str(error).split())) from error
        except RuntimeError as error:
            raise EngineDead(f"TensorRT-LLM no longer accepts requests: {error}") from error
        self._sequences[request.request_id] = sequence

    def abort(self, request_id: str) -> None:
        """Cancel a sequence. `step` drops outputs that are already queued."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._actor.abort(sequence)

    def step(self) -> list[TokenOutput]:
        """Return the outputs since the last call. Waits briefly if there are none."""
        outputs = []
        for sequence, output in self._actor.receive(_WAIT):
            if self._sequences.get(sequence.request_id) is not sequence:
                continue
            if output.finish_reason is not None:
                del self._sequences[sequence.request_id]
            if output.num_cached_tokens is not None and self._prefix_caching:
                self._counters += EngineCounters(
                    prefix_cache_queries=sequence.num_prompt_tokens, prefix_cache_hits=output.num_cached_tokens
                )
            outputs.append(output)
        return outputs

    @property
    def counters(self) -> EngineCounters:
        """Only the prefix cache is counted."""
        return self._counters

    def check_health(self) -> None:
        """Raise `EngineDead` if a worker is gone. The engine may just stop answering instead of failing requests."""
        if not self._llm._check_health():  # noqa: SLF001 (not public, but the library's servers use it)
            raise EngineDead("TensorRT-LLM has shut down")

    def close(self) -> None:
        """Cancel all sequences and shut down the engine."""
        self._actor.close()
        self._llm.shutdown()
