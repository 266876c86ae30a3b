"""Starts vLLM's engine, and watches the worker processes that it may have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Protocol

from vllm import EngineArgs, LLMEngine
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from backends.base import ModelFiles
from backends.vllm.engine_config import engine_config
from backends.vllm.errors import load_error
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, EngineDead, LoadFailed
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.core.load_phase import LoadPhase

# This module logs at length what it then raises. A level would not last: vLLM resets levels when it sets up logging.
logging.getLogger("vllm.transformers_utils.repo_utils").addFilter(lambda _record: False)


PATIENCE = 5.0
"""Seconds after a failed step within which Ray says which worker has died, if one has."""


def checkpoint(model: ModelFiles, backend: str) -> Path:
    """Return the folder of the checkpoint. Raises `ConfigError` if there is none."""
    if model.path is None:
        raise ConfigError(f"option.model_id: the {backend} backend needs a model")
    if not model.path.is_dir():
        raise ConfigError(f"option.model_id: vLLM needs the directory of a checkpoint, not {model.path.name}")
    return model.path


def start_engine(
    arguments: EngineArgs,
    properties: ServingProperties,
    report: Callable[[str], None],
    check: Callable[[VllmConfig], None] | None = None,
    warm_up: Callable[[LLMEngine], None] | None = None,
) -> LLMEngine:
    """Load the model. `check` may reject its configuration before that, and `warm_up` prepares the engine afterwards.

    Any failure raises `ConfigError` or `LoadFailed` with a one-line message.
    """
    report(LoadPhase.WEIGHTS)
    try:
        config = engine_config(arguments)
        if check is not None:
            check(config)
        if config.parallel_config.use_ray:
            from backends.vllm.ray.placement import place_workers

            place_workers(config, properties.model_loading_timeout, report)
        engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
        if warm_up is not None:
            report(LoadPhase.WARM_UP)
            warm_up(engine)
    except (ConfigError, LoadFailed):
        raise
    except Exception as error:  # the operator must hear of any failure to start
        cause = error
        if arguments.distributed_executor_backend == "ray":
            from backends.vllm.ray.failures import original

            cause = original(error)
        raise load_failure(load_error(cause, arguments), cause) from error
    return engine


def preview_workers(properties: ServingProperties) -> tuple[str, bool]:
    """Say what Ray is asked for and what it has, and whether it has answered. `lmi check` has checked the options."""
    from backends.vllm.ray.inquiry import preview

    tensor, pipeline = properties.tensor_parallel_degree, properties.pipeline_parallel_degree
    return preview(int(tensor) * pipeline, gpus=not current_platform.is_cpu())


class Workers(Protocol):
    """The engine's worker processes, if it has any.

    They are watched here because vLLM takes ten seconds under load to notice a dead one.
    """

    def check_health(self, *, patience: float = 0.0) -> None:
        """Raise `EngineDead` with the name of a dead one. One may turn out to be dead within `patience` seconds."""


def workers_of(engine: LLMEngine) -> Workers:
    """Return the workers to watch."""
    if engine.vllm_config.parallel_config.use_ray:
        from backends.vllm.ray.workers import RayWorkers

        return RayWorkers(engine.model_executor.ray_worker_handles)
    return LocalWorkers(engine)


class LocalWorkers:
    """Processes on this machine."""

    def __init__(self, engine: LLMEngine) -> None:
        # Only vLLM's multiprocess executor has `workers`.
        self._processes = [worker.proc for worker in getattr(engine.model_executor, "workers", ())]

    def check_health(self, *, patience: float = 0.0) -> None:  # noqa: ARG002  a dead child is known at once
        """Raise `EngineDead` with the name of a dead process."""
        sentinels = [process.sentinel for process in self._processes]
        dead = connection.wait(sentinels, timeout=0) if sentinels else ()
        for process in self._processes:
            if process.sentinel in dead:
                raise EngineDead(f"vLLM's worker process {process.name} has died; was it out of memory?")
