"""The engine process: loads one model, then serves web workers over a Unix socket until its parent is gone."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from backends import declaration, load_backend_class, registry
from backends.base import Backend, ModelFiles
from backends.selection import FALLBACK, check_format, needs_weights, select_backend
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.options import read_template_kwargs
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import NO_MARKS, Capabilities, check_default_budget
from lmi_handlers.core.errors import ConfigError, EngineDead, UnsupportedModel
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.thinking import ThinkingMarks
from lmi_handlers.engine.adapter_formatters import AdapterFormatters
from lmi_handlers.engine.adapter_manager import AdapterManager
from lmi_handlers.engine.adapter_registry import RegisteredAdapter, read_registry
from lmi_handlers.engine.adapters import AdapterSources, find_adapters, own_adapter
from lmi_handlers.engine.admission import Admission, DynamicBatch, RollingBatch
from lmi_handlers.engine.heartbeat import CPU_PATIENCE, PULSE_INTERVAL, Heartbeat
from lmi_handlers.engine.load_report import LoadReport
from lmi_handlers.engine.loop import EngineLoop, Inbox
from lmi_handlers.engine.messages import Loading, Ready
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.engine.supervised import run_supervised
from lmi_handlers.engine.worker_server import WorkerServer
from lmi_handlers.metrics.engine import EngineMetrics
from lmi_handlers.metrics.engine_info import EngineInfo
from lmi_handlers.model_files.cache_dir import checkpoint_dir, default_cache_dir
from lmi_handlers.model_files.fetch import local_model
from lmi_handlers.model_files.locate import find_config, find_gguf
from lmi_handlers.model_files.pickled import check_weights
from lmi_handlers.model_files.resolve import prepare_gguf, resolve_model
from lmi_handlers.model_files.weights_digest import model_digest
from lmi_handlers.text.bundle import (
    TextBundle,
    build_byte_bundle,
    build_text_bundle,
    check_sampling_defaults,
    copy_text_bundle,
    read_chat_template,
)
from lmi_handlers.text.output_parsers.reasoning import choose_reasoning_format
from lmi_handlers.text.thinking import thinking_marks
from lmi_handlers.text.tokenizer import Tokenizer
from lmi_handlers.text.vocabularies import difference
from lmi_handlers.workers.environment import withhold_credentials

EXIT_STUCK = 70
_LAST_NICENESS = 19
_WATCH_INTERVAL = 0.2
_LOAD_INTERVAL = 0.1
_LOG_INTERVAL = 60.0
_ALL_KNOW = 10.0
"""Seconds in which web workers learn of an adapter before whoever changed it gets the answer. One that hangs may not."""

logger = logging.getLogger("lmi_handlers.engine.process")  # __name__ is "__main__" here


def serve(settings: EngineSettings) -> None:
    """Load the model and run the loop until this process is killed.

    Raises `ConfigError` if the model or an option is wrong, `LoadFailed` if another try may help.
    """
    if settings.shadow_of:
        _stand_back()
    heartbeat = Heartbeat.create(settings.heartbeat_path)
    inbox: Inbox = queue.SimpleQueue()
    server = WorkerServer(settings.socket_path, inbox, settings.properties.stall_timeout)
    metrics = EngineMetrics(settings.metrics_dir, replica=settings.replica, replicas=len(settings.replicas))
    report = LoadReport(settings.started, server.announce, metrics, heartbeat)
    with contextlib.ExitStack() as files_in_use:
        weights = needs_weights(settings.properties)
        model = local_model(settings.properties, report, report.download, weights=weights)
        properties = files_in_use.enter_context(model)
        settings = msgspec.structs.replace(settings, properties=properties)
        _serve(settings, server, inbox, heartbeat, metrics, report, files_in_use)


def _serve(
    settings: EngineSettings,
    server: WorkerServer,
    inbox: Inbox,
    heartbeat: Heartbeat,
    metrics: EngineMetrics,
    report: LoadReport,
    files_in_use: contextlib.ExitStack,
) -> None:
    backend, files = _load(settings, report, files_in_use)
    capabilities = _served(backend.capabilities, settings.properties, files)
    admission = _admission(settings.properties, capabilities.max_num_seqs)

    def say_so() -> None:  # so that `/ping` fails before any request does
        server.announce(Loading("the engine has died and is being restarted", time.monotonic()))

    ready = Ready(str(settings.bundle_dir), capabilities)

    def announce(adapters: Mapping[str, str]) -> None:
        server.announce(_with(ready, adapters))
        server.settle(_ALL_KNOW)

    adapters = AdapterManager(
        backend,
        inbox,
        announce,
        runtime_dir=Path(settings.runtime_dir),
        open=AdapterSources(settings.properties, files.path).open,
        open_own=lambda path: own_adapter(path, settings.properties),
        adapters={
            name: RegisteredAdapter(str(source), folder=str(files.adapters[name]))
            for name, source in find_adapters(settings.properties, files.path).items()
            if name in files.adapters
        },
        reserved=(*settings.properties.served_names, settings.properties.name, settings.properties.model_id or ""),
        formatters=AdapterFormatters(settings) if settings.follows_adapters else None,
    )
    adapters.restore()
    loop = EngineLoop(
        backend,
        admission,
        settings.properties.job_queue_size,
        inbox,
        say_so,
        heartbeat,
        adapters.handle,
        settings.properties.retry_grace,
    )
    start_repeating(_WATCH_INTERVAL, lambda: _watch(loop, backend, server))
    heartbeat.start(patience=CPU_PATIENCE if capabilities.device == "cpu" else 1.0)
    start_repeating(PULSE_INTERVAL, heartbeat.beat)
    start_repeating(PULSE_INTERVAL, lambda: heartbeat.compare(backend.progress))
    publish = partial(_publish_load, loop, backend, metrics, has_adapters=settings.properties.enable_lora)
    start_repeating(_LOAD_INTERVAL, publish)
    start_repeating(_WATCH_INTERVAL, adapters.follow)
    seconds = report.finish()
    server.announce(_with(ready, adapters.digests))
    logger.info(
        "engine ready",
        extra={
            "backend": capabilities.backend,
            "model": settings.properties.name,
            "replica": settings.replica,
            "seconds": round(seconds, 3),
        },
    )
    try:
        loop.run()
    finally:
        server.flush()


def _load(
    settings: EngineSettings, report: LoadReport, files_in_use: contextlib.ExitStack
) -> tuple[Backend, ModelFiles]:
    properties = settings.properties
    gguf_file = find_gguf(properties.model_id, properties.model_folder)
    cache_dir = default_cache_dir(os.environ)
    selection = select_backend(properties, gguf_file, find_config(properties, cache_dir))
    logger.info("backend selected", extra={"backend": selection.name, "reason": selection.reason})
    report(LoadPhase.IMPORTING)
    backend_class = load_backend_class(selection.name, pools=properties.pools)
    backend = declaration(selection.name)
    if not backend.takes_gguf:
        gguf_file = None
    check_format(backend, gguf_file, properties)
    model_path = _model_path(backend, gguf_file, properties, report)
    if model_path is not None and properties.generation_config == "auto":
        check_sampling_defaults(model_path)
    if properties.trust_remote_code:
        withhold_credentials()
    report(LoadPhase.TOKENIZER)
    bundle = _build_bundle(settings, model_path, is_gguf=gguf_file is not None)
    thinking = _thinking_marks(settings, bundle)  # checked before the weights are loaded
    report.bundle = settings.bundle_dir
    report(LoadPhase.WEIGHTS)
    adapters = _still_served(find_adapters(properties, model_path), Path(settings.runtime_dir))
    files = ModelFiles(
        path=model_path,
        gguf_file=gguf_file,
        cache=checkpoint_dir(model_path, cache_dir) if model_path is not None and gguf_file is None else model_path,
        eos_token_ids=bundle.eos_token_ids,
        vocab_size=bundle.vocab_size,
        engine=settings.replica,
        engines=len(settings.replicas),
        adapters={name: files_in_use.enter_context(own_adapter(path, properties)) for name, path in adapters.items()},
        thinking=thinking,
        runtime_dir=Path(settings.runtime_dir),
    )
    try:
        return backend_class.load(files, properties, report), files
    except UnsupportedModel as error:
        if gguf_file is not None or registry().requested(properties) != "auto":
            raise
        logger.warning("backend selected", extra={"backend": FALLBACK, "reason": str(error)})
        return load_backend_class(FALLBACK).load(files, properties, report), files


def _model_path(
    backend: BackendDeclaration, gguf_file: Path | None, properties: ServingProperties, report: LoadReport
) -> Path | None:
    """Return the folder with the model's files, None if the backend generates without a model."""
    if gguf_file is None and not backend.needs_model and properties.model_id is None:
        return None
    report(LoadPhase.MODEL)
    cache_dir = default_cache_dir(os.environ)
    if gguf_file is not None:
        return prepare_gguf(gguf_file, cache_dir, report)
    path = resolve_model(
        properties.model_id,
        model_dir=properties.model_folder,
        revision=properties.revision,
        cache_dir=cache_dir,
        report=report,
        allow_pickle=properties.allow_pickle,
        weights=backend.needs_weights,
    )
    if backend.needs_weights:
        check_weights(path, properties)
    return path


def _build_bundle(settings: EngineSettings, model_path: Path | None, *, is_gguf: bool) -> TextBundle:
    """Write the files that web workers read, and return what they hold."""
    properties = settings.properties
    template = None
    if properties.chat_template is not None:
        template = read_chat_template(properties.chat_template, properties.model_folder)
    content_format = properties.chat_template_content_format
    template_kwargs = read_template_kwargs(properties.default_chat_template_kwargs or "{}")
    if model_path is None:
        bundle = build_byte_bundle(settings.bundle_dir, chat_template=template, template_kwargs=template_kwargs)
    elif is_gguf:
        bundle = copy_text_bundle(
            model_path,
            settings.bundle_dir,
            chat_template=template,
            content_format=content_format,
            template_kwargs=template_kwargs,
        )
    else:
        bundle = build_text_bundle(
            model_path,
            settings.bundle_dir,
            trust_remote_code=properties.trust_remote_code,
            chat_template=template,
            content_format=content_format,
            template_kwargs=template_kwargs,
        )
    if bundle.warning:
        logger.warning(bundle.warning)
    if settings.shadow_of and (cause := difference(Path(settings.shadow_of), settings.bundle_dir)):
        raise ConfigError(f"option.shadow_model: {cause}")
    return bundle


def _thinking_marks(settings: EngineSettings, bundle: TextBundle) -> ThinkingMarks | None:
    """Return the marks around the model's thoughts, None if it is not known to think. Raises `ConfigError`.

    Only the template tells whether `option.enable_reasoning` alone is enough.
    """
    properties = settings.properties
    reasoning = choose_reasoning_format(
        bundle.tool_template, properties.reasoning_parser, enabled=properties.enable_reasoning
    )
    marks = None
    if reasoning is not None:
        marks = thinking_marks(reasoning, Tokenizer(settings.bundle_dir, bundle), bundle.vocab_size)
    if marks is None and properties.thinking_token_budget is not None:
        raise ConfigError(f"option.thinking_token_budget {NO_MARKS}")
    return marks


def _stand_back() -> None:
    """Let every other process go first: on the processor, and when the kernel ends one for lack of memory."""
    os.nice(_LAST_NICENESS)
    with contextlib.suppress(OSError):  # only on Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def _still_served(found: dict[str, Path], runtime_dir: Path) -> dict[str, Path]:
    """Leave out the model's adapters that were unloaded or replaced since the server was started."""
    registered = read_registry(runtime_dir)
    if registered is None:
        return found
    return {name: path for name, path in found.items() if name in registered and registered[name].is_own}


def _with(ready: Ready, adapters: Mapping[str, str]) -> Ready:
    """Return the announcement of these adapters, name -> digest."""
    capabilities = msgspec.structs.replace(ready.capabilities, adapters=tuple(adapters), adapter_digests=dict(adapters))
    return Ready(ready.bundle, capabilities)


def _served(capabilities: Capabilities, properties: ServingProperties, files: ModelFiles) -> Capabilities:
    """Return what web workers may ask for: what the backend can do, within the limits that options set.

    Raises `ConfigError` if it cannot do what an option asks for with every request, and `LoadFailed` if the model's files
    cannot be read any more.
    """
    check_default_budget(properties.thinking_token_budget, capabilities.backend, capabilities.unsupported)
    weights = files.gguf_file or files.path
    prompt_limits = (capabilities.max_input_len, properties.max_input_tokens)
    return msgspec.structs.replace(
        capabilities,
        max_input_len=min((limit for limit in prompt_limits if limit is not None), default=None),
        max_num_seqs=capabilities.max_num_seqs if properties.rolling else properties.batch_size,
        marks_thoughts=files.thinking is not None,
        weights_digest="" if weights is None else model_digest(weights),
    )


def _admission(properties: ServingProperties, max_num_seqs: int) -> Admission:
    if properties.rolling:
        return RollingBatch(max_num_seqs)
    return DynamicBatch(properties.batch_size, properties.max_batch_delay / 1000)


def start_repeating(interval: float, action: Callable[[], None]) -> None:
    """Call `action` repeatedly on its own thread. Exceptions are logged, at most one per minute, and do not end it."""

    def repeat() -> None:
        failures, logged = 0, -math.inf
        while True:
            try:
                action()
            except Exception:
                failures += 1
                if time.monotonic() - logged >= _LOG_INTERVAL:
                    logged = time.monotonic()
                    logger.exception(
                        "a thread of the engine process failed; the thread continues", extra={"failures": failures}
                    )
            time.sleep(interval)

    threading.Thread(target=repeat, daemon=True).start()


def _watch(loop: EngineLoop, backend: Backend, server: WorkerServer) -> None:
    """If the engine has lost one of its processes, fail all requests and exit: the engine may not notice it itself."""
    try:
        backend.check_health()
    except EngineDead as error:
        logger.critical("engine is dead; the process ends", extra={"cause": str(error)})
        loop.fail_all(error)
        server.flush()
        os._exit(EXIT_STUCK)


def _publish_load(loop: EngineLoop, backend: Backend, metrics: EngineMetrics, *, has_adapters: bool) -> None:
    """Publish the load, the counters and the adapters in use. Not done in the loop, because its steps may take long."""
    metrics.set_load(running=loop.running, waiting=loop.waiting, kv_cache_usage=backend.kv_cache_usage)
    metrics.count(backend.counters)
    metrics.set_busy_time(loop.busy_time)
    metrics.count_shared(loop.shared_tokens)
    capabilities = backend.capabilities
    info = EngineInfo(block_size=capabilities.block_size, num_blocks=capabilities.num_blocks)
    if has_adapters:
        running, waiting = loop.adapters_in_use()
        most = capabilities.max_num_seqs if capabilities.max_loras is None else capabilities.max_loras
        info = msgspec.structs.replace(info, max_loras=most, running=running, waiting=waiting)
    metrics.set_info(info)


if __name__ == "__main__":
    run_supervised(serve)
