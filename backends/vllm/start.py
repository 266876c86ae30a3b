"""Starts vLLM's engine, and watches the worker processes that it may have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path

from vllm import EngineArgs, LLMEngine
from vllm.config import VllmConfig

from backends.base import ModelFiles
from backends.vllm.engine_config import engine_config
from backends.vllm.errors import load_error
from lmi_handlers.core.errors import ConfigError, EngineDead
from lmi_handlers.core.load_failure import load_failure

# This module logs at length what it then raises. A level would not last: vLLM resets levels when it sets up logging.
logging.getLogger("vllm.transformers_utils.repo_utils").addFilter(lambda _record: False)


def checkpoint(model: ModelFiles, backend: str) -> Path:
    """Return the folder of the checkpoint. Raises `ConfigError` if there is none."""
    if model.path is None:
        raise ConfigError(f"option.model_id: the {backend} backend needs a model")
    if not model.path.is_dir():
        raise ConfigError(f"option.model_id: vLLM needs the directory of a checkpoint, not {model.path.name}")
    return model.path


def start_engine(arguments: EngineArgs, check: Callable[[VllmConfig], None] | None = None) -> LLMEngine:
    """Load the model. `check` may reject its configuration before that.

    Any failure raises `ConfigError` or `LoadFailed` with a one-line message.
    """
    try:
        config = engine_config(arguments)
        if check is not None:
            check(config)
        return LLMEngine.from_vllm_config(config, disable_log_stats=True)
    except ConfigError:
        raise
    except Exception as error:  # the operator must hear of any failure to start
        raise load_failure(load_error(error, arguments), error) from error


class Workers:
    """The engine's worker processes, if it has any.

    They are watched here because vLLM takes ten seconds under load to notice a dead one.
    """

    def __init__(self, engine: LLMEngine) -> None:
        # Only vLLM's multiprocess executor has `workers`.
        self._processes = [worker.proc for worker in getattr(engine.model_executor, "workers", ())]

    def check_health(self) -> None:
        """Raise `EngineDead` with the name of a dead process."""
        sentinels = [process.sentinel for process in self._processes]
        dead = connection.wait(sentinels, timeout=0) if sentinels else ()
        for process in self._processes:
            if process.sentinel in dead:
                raise EngineDead(f"vLLM's worker process {process.name} has died; was it out of memory?")
