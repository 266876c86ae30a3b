"""The adapter for `option.rolling_batch=lmi-dist`. Chooses between the `lmi_dist` package and vLLM.

The `lmi_dist` wheel is not public and no longer built. This code was checked against the calls in LMI's own code
(`interface.py`), never against the wheel.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from backends.base import Backend, ModelFiles
from backends.lmi_dist.delta_reader import DeltaReader
from backends.lmi_dist.engine_args import engine_arguments, max_num_seqs
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import ConfigError, EngineDead, InvalidRequest
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.plugins import load_class
from lmi_handlers.core.request import TokenRequest

if TYPE_CHECKING:
    from backends.lmi_dist.engine import LmiDistEngine

logger = logging.getLogger(__name__)

MAX_LOGPROBS = 20
"""The default of the vLLM version in lmi_dist, which LMI does not change."""


class LmiDistBackend(Backend):
    """lmi_dist's engine, stepped in the engine process. `load` returns vLLM instead if lmi_dist is not installed."""

    def __init__(self, engine: LmiDistEngine, model: ModelFiles, *, max_num_seqs: int) -> None:
        self._engine = engine
        self._eos_token_ids = model.eos_token_ids
        self._sequences: dict[str, DeltaReader] = {}
        self._capabilities = Capabilities(
            backend="lmi_dist",
            max_model_len=engine.max_model_len,
            max_num_seqs=max_num_seqs,
            vocab_size=model.vocab_size,
            max_logprobs=MAX_LOGPROBS,
            unsupported=engine.unsupported,
            adapters=tuple(model.adapters),
        )

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> Backend:
        """Start lmi_dist's engine or vLLM's, and log which. Any failure raises `ConfigError` or `LoadFailed`."""
        if not _installed():
            logger.warning("lmi_dist is not installed; using vLLM with lmi-dist's options")
            return _on_vllm().load(model, properties, report)
        logger.info("using lmi_dist")
        if model.path is None:
            raise ConfigError("option.model_id: the lmi_dist backend needs a model")
        if not model.path.is_dir():
            raise ConfigError(f"option.model_id: lmi_dist needs the directory of a checkpoint, not {model.path.name}")
        report(LoadPhase.WEIGHTS)
        try:
            from backends.lmi_dist.engine import LmiDistEngine

            engine = LmiDistEngine(model.path, properties)
            engine.load_adapters(model.adapters)
        except ConfigError:
            raise
        except Exception as error:  # the operator must hear of any failure to start
            verdict = ConfigError(f"option.model_id: lmi_dist cannot serve {model.path}: {_one_line(error)}")
            raise load_failure(verdict, error) from error
        return cls(engine, model, max_num_seqs=max_num_seqs(properties))

    @classmethod
    def check_options(cls, properties: ServingProperties) -> None:
        """Check the options for the engine that would be used."""
        if _installed():
            engine_arguments(Path(), properties)
        else:
            _on_vllm().check_options(properties)

    @property
    def capabilities(self) -> Capabilities:
        """What this version of lmi_dist supports."""
        return self._capabilities

    def add_request(self, request: TokenRequest) -> None:
        """Start a sequence. Raises `InvalidRequest` if the engine refuses it."""
        params = request.sampling_params
        room = self._capabilities.max_model_len - len(request.prompt.token_ids)
        try:
            self._engine.add(
                request,
                max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
                stop_token_ids=[*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids)],
            )
        except ValueError as error:
            raise InvalidRequest(_one_line(error)) from error
        self._sequences[request.request_id] = DeltaReader(request, deltas=self._engine.deltas)

    def abort(self, request_id: str) -> None:
        if self._sequences.pop(request_id, None) is not None:
            self._engine.abort(request_id)

    def step(self) -> list[TokenOutput]:
        """Run one step of the engine. Any error in it raises `EngineDead`."""
        if not self._sequences:
            return []
        try:
            outputs = self._engine.step()
        except Exception as error:
            raise EngineDead(f"lmi_dist: {_one_line(error)}") from error
        taken = []
        for output in outputs:
            sequence = self._sequences.get(output.request_id)
            new = None if sequence is None else sequence.take(output)
            if new is None:
                continue
            if new.finish_reason is not None:
                del self._sequences[output.request_id]
            taken.append(new)
        return taken


def _installed() -> bool:
    return importlib.util.find_spec("lmi_dist") is not None


def _on_vllm() -> type[Backend]:
    location = {"lmi_dist": "backends.lmi_dist.on_vllm:LmiDistOnVLLM"}
    return load_class("backend", location, "lmi_dist", Backend)  # type: ignore[type-abstract]  # for a type check


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
