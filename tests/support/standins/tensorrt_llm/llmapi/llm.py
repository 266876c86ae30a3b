"""The engine's interface: checks arguments and passes requests to the worker."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import tensorrt_llm.sampling_params as sampling
from tensorrt_llm.contract import CONTRACT, Misuse, accepts
from tensorrt_llm.controls import controls
from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.executor.result import RequestOutput
from tensorrt_llm.executor.utils import RequestError
from tensorrt_llm.executor.worker import Job, Worker
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.lora_helper import TARGET_MODULES


class LLM:
    """One loaded model."""

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        named = {name: value for name, value in locals().items() if name not in ("self", "kwargs")}
        kwargs.pop("backend", None)
        others = [name for name in kwargs if name in CONTRACT["LLM"]["trt_only_field_names_unverified"]]
        if others:
            raise ValueError(
                "The following arguments are specific to TensorRT backend and cannot be used with PyTorch backend: "
                f"{others}.\nPlease use another."
            )
        for name in kwargs:
            if name not in TorchLlmArgs.FIELDS:
                raise ValueError(f"LLM got invalid argument: {name}")
        self.args = TorchLlmArgs(**named, **kwargs)
        if self.args.guided_decoding_backend is not None:
            assert not self.args.skip_tokenizer_init, "guided decoding needs the tokenizer"
        if self.args.lora_config is not None:
            _check_lora_config(self.args.lora_config)
        needed = self.args.tensor_parallel_size * self.args.pipeline_parallel_size * self.args.context_parallel_size
        if needed > controls.gpus:
            raise RuntimeError(f"Only {controls.gpus} GPUs are available, but {needed} are required.")
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        self.vocab_size: int = config["vocab_size"]
        self.max_seq_len: int = self.args.max_seq_len or config["max_position_embeddings"]
        self.tokenizer: Any = None if self.args.skip_tokenizer_init else object()
        self.submitted: list[Any] = []
        """All `SamplingParams` received so far. The library has no such attribute."""
        self._adapters: dict[int, str] = {}
        self._ids = itertools.count(1)
        self._executor: Worker | None = Worker(self.args, self.vocab_size, self.max_seq_len)

    def generate_async(
        self,
        inputs: Any,
        sampling_params: Any = None,
        lora_request: Any = None,
        prompt_adapter_request: None = None,
        streaming: bool = False,
        kv_cache_retention_config: None = None,
        disaggregated_params: None = None,
        trace_headers: None = None,
        _postproc_params: None = None,
        scheduling_params: None = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """Start a request. This is not a coroutine, but its result can only be iterated in the event loop it was made in."""
        if self._executor is None or self._executor.stopped:
            raise RuntimeError("LLM is shutting down")
        params = self._prepare(sampling_params)
        prompt = _prompt_token_ids(inputs)
        if not accepts("Optional[str]", cache_salt) or not isinstance(streaming, bool):
            raise TypeError(f"wrong type of cache_salt {cache_salt!r} or streaming {streaming!r}")
        self._check_lora_request(lora_request)
        limit = self.args.max_num_tokens
        if not self.args.enable_chunked_prefill and limit and len(prompt) > limit:
            raise RequestError(
                f"The sum of prompt length ({len(prompt)}), query length (0) should not exceed max_num_tokens ({limit})"
            )
        result = RequestOutput._make(next(self._ids), prompt, params, self._executor, streaming)
        job = Job(result, prompt, params, lora_request=lora_request, cache_salt=cache_salt, streaming=streaming)
        self._executor.submit(job)
        return result

    def shutdown(self) -> None:
        """Stop the worker."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def _check_health(self) -> bool:
        return self._executor is not None and not self._executor.stopped

    def _check_lora_request(self, lora_request: Any) -> None:
        if lora_request is None:
            return
        if not isinstance(lora_request, LoRARequest):
            raise TypeError(f"lora_request must be a LoRARequest, got {lora_request!r:.80}")
        if self.args.lora_config is None:
            raise Misuse("without lora_config the engine ignores lora_request and answers from the model itself")
        path = self._adapters.setdefault(lora_request.lora_int_id, lora_request.lora_path)
        if path != lora_request.lora_path:
            raise Misuse(
                f"the engine takes adapter {lora_request.lora_int_id} for the one in {path}, of the same number"
            )

    def _prepare(self, params: Any) -> Any:
        if params is None:
            params = sampling.SamplingParams()
        if not isinstance(params, sampling.SamplingParams):
            raise TypeError(f"The sampling_params must be type SamplingParams or None, but got {type(params)}")
        if params.end_id is None:
            if self.tokenizer is None:
                raise ValueError(
                    "tokenizer is required to reset end_id if it is None, "
                    "or you can explicitly specify the end_id for sampling_params"
                )
            raise Misuse(
                "without end_id the engine changes the caller's SamplingParams and takes it from its tokenizer"
            )
        for name in ("stop", "bad"):
            if getattr(params, name) is not None:
                raise RuntimeError(f"{name} is not processed by tokenizer, please call the setup method.")
        if params.embedding_bias is not None and tuple(params.embedding_bias.shape) != (self.vocab_size,):
            raise Misuse(f"embedding_bias must have one number for each of {self.vocab_size} tokens")
        if params.guided_decoding is not None and self.args.guided_decoding_backend is None:
            raise Misuse("without guided_decoding_backend the engine ignores guided_decoding")
        if any(seen is params for seen in self.submitted):
            raise Misuse("this SamplingParams was submitted before; the engine keeps the object")
        self.submitted.append(params)
        return params


def _check_lora_config(config: Any) -> None:
    for path in config.lora_dir:
        if not Path(path).exists():
            raise ValueError(f"{path} does not exist")
    if len(config.lora_dir) != 1 and not config.lora_target_modules:
        if config.lora_dir:
            raise AssertionError("Expecting at least one lora target module")
        config.lora_target_modules = list(TARGET_MODULES)


def _prompt_token_ids(inputs: Any) -> list[int]:
    if isinstance(inputs, dict):
        assert "prompt" in inputs or "prompt_token_ids" in inputs
        inputs = inputs.get("prompt_token_ids", inputs.get("prompt"))
    if isinstance(inputs, str):
        raise Misuse("the stand-in has no tokenizer: token ids only")
    if not isinstance(inputs, list):
        raise TypeError(f"Invalid type of inputs for llm.generate: {type(inputs)}")
    assert isinstance(inputs[0], int)
    return inputs
