"""serving.properties -> vLLM's `EngineArgs`.

Values are passed as text through vLLM's own command-line parser. So vLLM's types, ranges and choices apply, and new
settings of a vLLM version are available at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import logging
import os
import secrets
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NoReturn

import vllm.envs as engine_environment
from vllm import EngineArgs
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from backends.vllm import DECLARATION
from backends.vllm.arguments import (
    ALIASES,
    ALONE,
    DTYPES,
    METHODS,
    NO_EFFECT,
    ONE_ENGINE,
    OURS,
    REMOVED,
    REPLACED,
)
from backends.vllm.offload import check_offloading
from backends.vllm.options import DEFAULT_BATCH_SIZE, DEFAULT_MAX_LORAS, NO_COUNTERPART
from backends.vllm.ray.requirements import check_requirements
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.option import text_of
from lmi_handlers.config.properties import NEAR, ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.complete import check_complete
from lmi_handlers.model_files.hub import download
from lmi_handlers.model_files.pickled import check_weights
from lmi_handlers.model_files.secure_mode import SecureMode

logger = logging.getLogger(__name__)

GRAMMAR_LIBRARY = "guidance"
"""vLLM's name for llguidance, the default grammar library here. The transformers backend uses it too.

With "auto", vLLM chooses a library for the first request with a grammar. It then silently ignores what that library does
not support in later requests.
"""

TOKENIZER_FILE = "tokenizer.json"
"""The file that llguidance reads. If the model has none, vLLM chooses the grammar library."""

_EXECUTORS = (None, "mp", "uni", "ray")
"""Supported executors. The others expect someone else to start their workers."""

_WITHOUT_DRAFT = ("ngram", "[ngram]", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")
"""Methods of `option.speculative_config` that load no draft model."""

TEXT_LAYER = (
    "model_id",
    "revision",
    "max_audio_seconds",
)
"""Options of LMI's vLLM handler that are handled outside the engine here."""


def engine_arguments(
    path: Path,
    properties: ServingProperties,
    *,
    backend: BackendDeclaration = DECLARATION,
    adapters: int = 0,
    report: Callable[[str], None] | None = None,
) -> EngineArgs:
    """Return the arguments for the model in `path` with this number of adapters.

    `backend` declares the options that are read: vLLM's, or those of another backend that runs on vLLM. With `report`, a
    draft model on the hub is downloaded. Raises `ConfigError` with the name of the option, or `LoadFailed`.
    """
    fields = {field.name for field in dataclasses.fields(EngineArgs)}
    texts = {"max_num_seqs": str(DEFAULT_BATCH_SIZE)} | _declared(properties, backend, fields)
    if not properties.rolling:
        texts["max_num_seqs"] = str(properties.batch_size)
    for name, text in backend.passed_on(properties).items():
        if name in OURS:
            raise ConfigError(f"option.{name}: the server sets this argument of vLLM; {OURS[name]}")
        if name in NO_EFFECT:
            logger.warning(f"option.{name} has no effect: {NO_EFFECT[name]}")
        elif name in fields:
            texts[name] = text
        elif name in REMOVED:
            logger.warning(f"option.{name} has no effect: {REMOVED[name]}")
        elif name in REPLACED:
            raise ConfigError(f"option.{name}: vLLM has replaced it; {REPLACED[name]}")
        elif name in properties.extra:
            raise ConfigError(
                f"option.{name}: neither this server nor vLLM has this option{_nearest(name, fields, backend)}"
            )
        else:
            logger.warning(f"option.{name} has no effect on backend {backend.name}: only other backends read it")
    # By default, unseeded requests would get the same samples after every restart.
    texts.setdefault("seed", str(secrets.randbits(32)))
    arguments = EngineArgs.from_cli_args(_parse({"model": str(path)} | texts))
    _check_quantization(arguments)
    _check_alone(arguments, pools=properties.pools)
    _local_draft(arguments, properties, report)
    check_offloading(backend, properties, arguments)
    if arguments.distributed_executor_backend == "ray":
        check_requirements(properties, os.environ)
    arguments.disable_log_stats = True
    arguments.use_tqdm_on_load = False
    arguments.runner = _runner(pools=properties.pools)  # by default, vLLM decides by the model
    if arguments.structured_outputs_config.backend == "auto" and (path / TOKENIZER_FILE).exists():
        arguments.structured_outputs_config.backend = GRAMMAR_LIBRARY
    if current_platform.is_cpu() and arguments.enable_chunked_prefill is None:
        # On a CPU, vLLM crashes if a seeded request's prompt is computed in chunks. It tries to rewind torch's random
        # generator, which the CPU generator does not support.
        arguments.enable_chunked_prefill = False
    if arguments.enable_lora:
        _make_room(arguments, adapters, explicit="max_loras" in texts)
    return arguments


def _runner(*, pools: bool) -> Literal["generate", "pooling"]:
    return "pooling" if pools else "generate"


def _check_quantization(arguments: EngineArgs) -> None:
    """Raise `ConfigError` for a method that neither vLLM nor one of its plug-ins has, as loading would."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS  # `EngineArgs` has loaded the plug-ins

    method = arguments.quantization
    if method is not None and method not in QUANTIZATION_METHODS:
        known = ", ".join(QUANTIZATION_METHODS)
        raise ConfigError(f"{option_of('quantization')} has value {method!r}: vLLM supports {known}")


def _check_alone(arguments: EngineArgs, *, pools: bool) -> None:
    """Raise `ConfigError` for options that need more than this one engine, or another task."""
    for name, reason in ALONE.items():
        if name == "convert" and pools:
            continue
        value = getattr(arguments, name)
        # Compare with the class attribute, because an instance without a model would load vLLM's default model.
        if value not in (getattr(EngineArgs, name), _runner(pools=pools) if name == "runner" else None):
            raise ConfigError(f"{option_of(name)} has value {value!r}: {reason}")
    stages = arguments.pipeline_parallel_size
    if stages > 1 and current_platform.is_cpu():  # in vLLM 0.32 the first step raises KeyError
        raise ConfigError(
            f"{option_of('pipeline_parallel_size')} has value {stages}: must be 1 on a CPU, where vLLM's pipelines fail"
        )
    executor = arguments.distributed_executor_backend
    if executor not in _EXECUTORS:
        raise ConfigError(f"option.distributed_executor_backend has value {executor!r}: must be mp, uni or ray")
    if engine_environment.VLLM_DP_SIZE > 1:  # vLLM reads this variable if the option is not set
        raise ConfigError(f"VLLM_DP_SIZE has value {engine_environment.VLLM_DP_SIZE}: {ONE_ENGINE}")


def _local_draft(
    arguments: EngineArgs, properties: ServingProperties, report: Callable[[str], None] | None = None
) -> None:
    """Raise `ConfigError` if the weights of a draft model are pickled or cut off, as for the model itself.

    One on the hub is downloaded if there is a `report`, as vLLM itself would take any weights, and search none.
    """
    given = arguments.speculative_config or {}
    draft, method = arguments.spec_model or given.get("model"), arguments.spec_method or given.get("method")
    if not isinstance(draft, str) or method in _WITHOUT_DRAFT or (method is None and _names_a_method(draft)):
        return
    folder = Path(draft)
    if not folder.is_dir():
        if "://" in draft and SecureMode.from_environ(os.environ) is not None:
            raise ConfigError(f"the draft model {draft} must be a folder or a hub id in secure mode")
        if report is None or "://" in draft:
            return
        folder = download(
            draft,
            "",
            revision=given.get("revision"),
            cache_dir=default_cache_dir(os.environ),
            report=report,
            allow_pickle=properties.allow_pickle,
            option="the draft model",
        )
        if not (properties.allow_pickle or any(folder.glob("*.safetensors"))):
            raise ConfigError(
                f"the draft model {draft} has no safetensors: pickled weights need option.allow_pickle=true"
            )
        if arguments.spec_model is not None:
            arguments.spec_model = str(folder)
        else:
            arguments.speculative_config = {**given, "model": str(folder)}
    check_complete(folder)
    check_weights(folder, properties)


def _names_a_method(draft: str) -> bool:
    """Tell whether vLLM takes the name of a draft model for a method: `ngram`, or a class of the operator's."""
    parts = draft.split(".")
    return draft in ("ngram", "[ngram]") or (len(parts) > 1 and all(map(str.isidentifier, parts)))


def _make_room(arguments: EngineArgs, adapters: int, *, explicit: bool) -> None:
    if not explicit:
        arguments.max_loras = DEFAULT_MAX_LORAS
    if current_platform.is_cpu():
        # On a CPU, requests without an adapter use whatever is in the last slot, so that slot must stay empty.
        arguments.max_loras = max(arguments.max_loras, adapters + 1)
    if arguments.max_cpu_loras is not None:
        arguments.max_cpu_loras = max(arguments.max_cpu_loras, arguments.max_loras)


def option_of(argument: str) -> str:
    """Return the option name that users set for an engine argument."""
    names = {engine: ours for ours, engine in ALIASES.items()} | {"model": "model_id"}
    return f"option.{names.get(argument, argument)}"


def _declared(properties: ServingProperties, backend: BackendDeclaration, fields: set[str]) -> dict[str, str]:
    """Return the declared options that are set or have a default here, as engine argument -> text."""
    texts = {}
    for name, value in backend.values(properties).items():
        argument = ALIASES.get(name, name)
        if name in NO_COUNTERPART:
            logger.warning(f"option.{name} has no effect: {NO_COUNTERPART[name]}")
        elif name in TEXT_LAYER or argument not in fields:
            continue
        elif name == "tensor_parallel_degree" and value == "max":
            texts[argument] = str(max(1, current_platform.device_count() // properties.pipeline_parallel_degree))
        elif name == "dtype":
            texts[argument] = DTYPES.get(str(value), str(value))
        elif name == "quantize":
            texts[argument] = METHODS.get(str(value), str(value))
        else:
            texts[argument] = text_of(value)
    return texts


class _Parser(FlexibleArgumentParser):
    """vLLM's parser, but an error raises `ConfigError` instead of exiting the process."""

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigError` with our option name, found in "argument --max-num-seqs: ..."."""
        flags, _, reason = message.removeprefix("argument ").partition(": ")
        name = flags.split("/")[-1].split(",")[-1].strip().lstrip("-").replace("-", "_")
        raise ConfigError(f"{option_of(name)}: {' '.join((reason or message).split())}")


def _parse(texts: Mapping[str, str]) -> argparse.Namespace:
    parser = _Parser(add_help=False, allow_abbrev=False)
    EngineArgs.add_cli_args(parser)
    actions = {action.dest: action for action in parser._actions}  # noqa: SLF001  no public way to list actions
    words = []
    for name, text in texts.items():
        action = actions.get(name)
        if action is None:
            raise ConfigError(f"{option_of(name)}: vLLM does not accept text for it")
        flag = f"--{name.replace('_', '-')}"
        if isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0:
            words.append(_switch(name, flag, text))
        elif action.nargs in ("+", "*"):
            words += [flag, *shlex.split(text.replace(",", " "))]
        else:
            words.append(f"{flag}={text}")
    return parser.parse_args([word for word in words if word])


def _switch(name: str, flag: str, text: str) -> str:
    match text.lower():
        case "true" | "1" | "yes" | "on":
            return flag
        case "false" | "0" | "no" | "off":
            return f"--no-{flag[2:]}"
    raise ConfigError(f"{option_of(name)} has value {text!r}: must be true or false")


def _nearest(name: str, fields: set[str], backend: BackendDeclaration) -> str:
    known = [*fields, *backend.reads, *backend.options.__struct_fields__]
    near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    return f"; did you mean option.{near[0]}?" if near else ""
