"""The adapter: what the engine can do, which requests it gets, what becomes of its errors."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from tensorrt_llm import LLM
from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.executor.utils import RequestError

from backends.base import Backend, Capabilities, ModelFiles
from backends.tensorrt_llm import UNSUPPORTED
from backends.tensorrt_llm.actor import LLMActor
from backends.tensorrt_llm.llm_args import choose_max_model_len, llm_arguments, max_batch_size
from backends.tensorrt_llm.lora import lora_requests
from backends.tensorrt_llm.sampling import engine_sampling_params
from backends.tensorrt_llm.sequence import Sequence
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, EngineDead, InvalidRequest, UnsupportedFeature
from lmi_handlers.core.limits import check_adapter, check_prompt, check_sampling_params
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest

MAX_LOGPROBS = 0
"""The sampler gives the log probability of the sampled token, and of no other."""

MAX_PROMPT_LOGPROBS = 20
"""These are made here, of the prompt's logits; as many as other engines give."""

_WAIT = 0.01


class TensorRTLLMBackend(Backend):
    """Hands requests to TensorRT-LLM, which batches them itself, and collects what comes back.

    `max_input_len` and `max_output_len` bound a prompt and an answer each for itself; None where they are not.
    `guided_decoding` tells whether the engine was started with a library for grammars: without one it would ignore what
    an answer must match, and say nothing. `adapters` are the LoRA adapters that it was started for, by name.
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
        adapters: Mapping[str, LoRARequest] | None = None,
    ) -> None:
        self._llm = llm
        self._actor = LLMActor(llm)
        self._eos_token_ids = model.eos_token_ids
        self._vocab_size = model.vocab_size
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._max_input_len = min(max_input_len or max_model_len, max_model_len - 1)
        self._max_output_len = max_output_len
        self._guided_decoding = guided_decoding
        self._adapters = dict(adapters or {})
        self._sequences: dict[str, Sequence] = {}

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
        report("starting TensorRT-LLM")
        try:
            adapters = lora_requests(model.adapters)
            llm = LLM(**llm_arguments(model.path, properties, max_model_len=max_model_len, adapters=model.adapters))
        except ConfigError:
            raise
        except Exception as error:  # whatever stops the engine from starting, the operator must hear of it
            reason = " ".join(str(error).split()) or type(error).__name__
            verdict = ConfigError(f"option.model_id: TensorRT-LLM cannot serve {model.path}: {reason}")
            raise load_failure(verdict, error) from error
        return cls(
            llm,
            model,
            max_model_len=max_model_len,
            max_num_seqs=max_batch_size(properties),
            max_input_len=properties.max_input_len,
            max_output_len=properties.max_output_len,
            guided_decoding=properties.guided_decoding_backend is not None,
            adapters=adapters,
        )

    @property
    def capabilities(self) -> Capabilities:
        """Everything but what `UNSUPPORTED` names, and no alternatives of a generated token."""
        missing = () if self._guided_decoding else ("structured_outputs",)
        return Capabilities(
            backend="tensorrt_llm",
            max_model_len=self._max_model_len,
            max_num_seqs=self._max_num_seqs,
            vocab_size=self._vocab_size,
            max_logprobs=MAX_LOGPROBS,
            max_prompt_logprobs=MAX_PROMPT_LOGPROBS,
            unsupported=(*UNSUPPORTED, *missing),
            adapters=tuple(self._adapters),
        )

    def add_request(self, request: TokenRequest) -> None:
        """Submit a sequence, if it can ever run. Raises `EngineDead` where the engine takes no requests any more."""
        self._validate(request)
        sequence = Sequence(request, self._eos_token_ids)
        options: dict[str, Any] = {}
        if request.sampling_params.prompt_logprobs is not None:
            # A cached beginning of the prompt is not computed and has no logits; nothing is cached under a new salt.
            options["cache_salt"] = secrets.token_hex(8)
        if request.adapter is not None:
            options["lora_request"] = self._adapters[request.adapter]
        try:
            sampling_params = engine_sampling_params(
                request.sampling_params,
                max_tokens=self._max_tokens(request),
                eos_token_ids=self._eos_token_ids,
                vocab_size=self._vocab_size,
            )
            self._actor.submit(sequence, request.prompt_token_ids, sampling_params, **options)
        except (RequestError, ValueError) as error:
            raise InvalidRequest(" ".join(str(error).split())) from error
        except RuntimeError as error:
            raise EngineDead(f"TensorRT-LLM takes no requests: {error}") from error
        self._sequences[request.request_id] = sequence

    def abort(self, request_id: str) -> None:
        """Cancel a sequence in the engine; what is on its way already is dropped by `step`."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._actor.abort(sequence)

    def step(self) -> list[TokenOutput]:
        """Collect what the engine has produced since the last call, after a short wait if that is nothing."""
        outputs = []
        for sequence, output in self._actor.receive(_WAIT):
            if self._sequences.get(sequence.request_id) is not sequence:
                continue
            if output.finish_reason is not None:
                del self._sequences[sequence.request_id]
            outputs.append(output)
        return outputs

    def check_health(self) -> None:
        """An engine whose worker process is gone may be silent instead of failing its requests."""
        if not self._llm._check_health():  # noqa: SLF001 (the library's own servers ask so; there is no public way)
            raise EngineDead("TensorRT-LLM has shut down")

    def close(self) -> None:
        """Cancel what runs and shut the engine down."""
        self._actor.close()
        self._llm.shutdown()

    def _max_tokens(self, request: TokenRequest) -> int:
        """Always a number: None would leave the engine's own default or limit to apply."""
        room = self._max_model_len - len(request.prompt_token_ids)
        return min(
            limit for limit in (room, request.sampling_params.max_tokens, self._max_output_len) if limit is not None
        )

    def _validate(self, request: TokenRequest) -> None:
        params, limits = request.sampling_params, self.capabilities
        check_prompt(request.prompt_token_ids, limits, max_input_len=self._max_input_len)
        if self._max_output_len is not None and (params.max_tokens or 0) > self._max_output_len:
            raise InvalidRequest(
                f"must be at most {self._max_output_len} (option.max_output_len), got {params.max_tokens}",
                field="max_tokens",
            )
        if params.structured_outputs is not None and not self._guided_decoding:
            raise UnsupportedFeature(
                "TensorRT-LLM needs option.guided_decoding_backend for it, which is not set", field="structured_outputs"
            )
        check_sampling_params(params, limits)
        check_adapter(request.adapter, limits)
        if request.request_id in self._sequences:
            raise InvalidRequest(f"request {request.request_id} is running already")
