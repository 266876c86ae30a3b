"""The only module that uses the `lmi_dist` package: starts its engine and creates its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmi_dist.api import Request, RequestParams
from lmi_dist.arg_utils import VllmEngineArgs
from lmi_dist.init_engine import engine_from_args

from backends.lmi_dist.engine_args import engine_arguments
from backends.lmi_dist.interface import Engine, RequestOutput
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

_SAME_NAME = (
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
)
"""Fields of our `SamplingParams` that have the same name in the engine, if its version has them."""

_NEVER = ("structured_outputs", "watermark", "prompt_lookup_num_tokens", "thinking_token_budget")
_DEFAULTS = SamplingParams()
_SEED_BITS = 63


class LmiDistEngine:
    """An `lmi_dist` engine, called as LMI does. `deltas` is true if outputs contain only the new tokens, not all."""

    def __init__(self, path: Path, properties: ServingProperties) -> None:
        self._engine: Engine = engine_from_args(VllmEngineArgs(**engine_arguments(path, properties)))
        self._fields = frozenset(RequestParams().__struct_fields__)
        self._adapters: dict[str, object] = {}
        self.deltas = "output_kind" in self._fields
        self.max_model_len = self._engine.preprocessor.model_config.max_model_len

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Fields of our `SamplingParams` that this version does not support."""
        return (*_NEVER, *(name for name in _SAME_NAME if name not in self._fields))

    def load_adapters(self, adapters: Mapping[str, Path]) -> None:
        """Load all adapters now, so that no request waits for one. Raises `ConfigError`."""
        if not adapters:
            return
        from vllm.lora.request import LoRARequest  # the vLLM version in lmi_dist

        for number, (name, path) in enumerate(adapters.items(), 1):
            self._adapters[name] = LoRARequest(lora_name=name, lora_int_id=number, lora_path=str(path))
            if not self._engine.add_lora(self._adapters[name]):
                raise ConfigError(f"option.enable_lora: lmi_dist does not load adapter {name!r}")

    def add(self, request: TokenRequest, *, max_tokens: int, stop_token_ids: Sequence[int]) -> None:
        """Start a request with these `max_tokens` and `stop_token_ids` instead of its own. May raise engine errors."""
        adapter = request.prompt.adapter
        options: dict[str, Any] = {} if adapter is None else {"lora_request": self._adapters[adapter]}
        self._engine.add_requests(
            [
                Request(
                    id=request.request_id,
                    prompt={"prompt_token_ids": request.prompt.token_ids},
                    params=self._request_params(request.sampling_params, max_tokens, stop_token_ids),
                    **options,
                )
            ]
        )

    def step(self) -> Sequence[RequestOutput]:
        return self._engine.step()

    def abort(self, request_id: str) -> None:
        self._engine.reset([request_id])

    def _request_params(self, params: SamplingParams, max_tokens: int, stop_token_ids: Sequence[int]) -> RequestParams:
        """Return the engine's parameters. Defaults are left out, as an unknown field would raise `TypeError`."""
        values = {name: value for name in _SAME_NAME if (value := getattr(params, name)) != getattr(_DEFAULTS, name)}
        if values.get("top_k", 1) < 1:
            del values["top_k"]  # this engine uses -1 for "off" and rejects 0
        if params.seed is not None:
            values["seed"] = params.seed % 2**_SEED_BITS  # torch's generators accept no larger seeds
        for name in ("bad_words", "allowed_token_ids"):
            if name in values:
                values[name] = list(values[name])
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(params, name)) is not None:
                values[name] = max(count, 1)  # LMI always asks for at least 1, so the effect of 0 is unknown
        if self.deltas:
            values["output_kind"] = type(RequestParams().output_kind).DELTA
        return RequestParams(max_tokens=max_tokens, stop_token_ids=list(stop_token_ids), **values)
