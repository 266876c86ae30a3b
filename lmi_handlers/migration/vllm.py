"""`vllm serve ..`. Source of the flags: vLLM 0.32's own parser.

A flag that is not in these tables sets the engine argument of that name, as an option does. Engine arguments change with
each version of vLLM, so it is vLLM that checks them: `lmi check` asks the version that is installed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from backends.vllm.arguments import ALIASES, ALONE, DTYPES, NO_EFFECT, OURS, REMOVED
from lmi_handlers.config.option import DeclaredOption
from lmi_handlers.config.variables import SM_VLLM, VLLM_DEFAULTS
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.migration.command import MANY, read_command, read_flags
from lmi_handlers.migration.translation import Exports, Lacks, Meaning, Passes, Sets, Translation

_PROGRAMS = (
    ("vllm", "serve"),
    ("-m", "vllm.entrypoints.openai.api_server"),
    ("-m", "vllm.entrypoints.cli.main", "serve"),
)
_PORT, _PORT_OF_SAGEMAKER = 8000, 8080

_SHORT = {
    "-asc": "--api-server-count",
    "-q": "--quantization",
    "-pp": "--pipeline-parallel-size",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-tp": "--tensor-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-ep": "--enable-expert-parallel",
    "-sc": "--speculative-config",
    "-dc": "--diffusion-config",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-O": "--optimization-level",
}
_SWITCHES = {
    "aggregate-engine-logging",
    "allow-credentials",
    "allow-deprecated-quantization",
    "async-scheduling",
    "cohere-is-reasoning-model",
    "cudagraph-metrics",
    "data-parallel-external-lb",
    "data-parallel-hybrid-lb",
    "data-parallel-multi-port-external-lb",
    "dcp-q-replicate",
    "enforce-eager",
    "exclude-tools-when-tool-choice-none",
    "fail-on-environ-validation",
    "fully-sharded-loras",
    "grpc",
    "headless",
    "interleave-mm-strings",
    "jit-monitor-verbose",
    "kv-cache-metrics",
    "kv-sharing-fast-prefill",
    "language-model-only",
    "log-error-stack",
    "long-prefill-token-threshold-adaptive",
    "mm-device-do-normalize",
    "mm-encoder-only",
    "numa-bind",
    "ray-workers-use-nsight",
    "return-sampling-mask",
    "return-tokens-as-token-ids",
    "scheduler-reserve-full-isl",
    "skip-mm-profiling",
    "skip-tokenizer-init",
    "sleep-mode-offload-cudagraph",
    "specialize-active-lora",
    "swa-bounded-replay",
    "tokens-only",
    "trust-remote-code",
    "trust-request-chat-template",
    "trust-request-mm-kwargs",
    "use-fp64-gumbel",
    "use-replayssm",
    "use-tqdm-on-load",
}
"""Flags without a value, besides those that begin with enable-, disable- or no-."""

_LISTS = {
    "allowed-media-domains",
    "api-key",
    "collect-detailed-traces",
    "cpu-offload-params",
    "cudagraph-capture-sizes",
    "ignore-patterns",
    "kv-cache-dtype-skip-layers",
    "logits-processors",
    "lora-modules",
    "lora-target-modules",
    "numa-bind-cpus",
    "numa-bind-nodes",
    "offload-params",
    "served-model-name",
    "sleep-preserve-parameter-names",
}
"""Flags with one value or more."""

_LEVEL = re.compile(r"^-O(?=\d$)")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TLS = "put a proxy with the certificate in front; on SageMaker, AWS does that"
_PER_REQUEST = "the client decides per request"
_NEVER_LOGGED = "prompts and answers are never logged"
_GUNICORN = "the HTTP server is gunicorn; LOG_FORMAT and option.client_timeout are its settings"
_ALWAYS = "this is always so"
_METRICS = "/metrics has vLLM's names; metrics beyond them are not there"
_ONE_PROCESS = "the server starts the processes that it needs; option.web_workers and minWorkers set their numbers"
_BEHIND = (
    "only for a server that is the engine of another one, such as this one with option.rolling_batch=remote (remote.md)"
)
_SLEEP = "PUT /models/<model>?min_worker=0 ends the engine of a model, on a server with --model-store (many-models.md)"
_CODE = "no code is loaded from outside; a model.py formats requests and answers (custom-code.md)"


def _integer(text: str) -> str:
    """Convert vLLM's `32k` (thousands) and `32K` (powers of 1024). Its `auto` and -1 are what happens anyway."""
    if text in ("auto", "-1"):
        return ""
    return str(_number(text))


def _number(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([kmgtKMGT]?)", text, re.ASCII)
    if found is None or ("." in text and not found[2]):
        raise ValueError("not a number such as 8192, 8k or 8K")
    return int(float(found[1]) * _UNITS.get(found[2], 1))


def _dtype(text: str) -> str:
    names = {long: short for short, long in DTYPES.items()} | {"half": "fp16", "float": "fp32"}
    return names.get(text, text)


def _origins(text: str) -> str:
    return ",".join(json.loads(text)) if text.startswith("[") else text


def _limits(text: str) -> str:
    """Convert the older `image=4,video=0` to JSON."""
    if text.startswith("{"):
        return text
    return json.dumps({name: int(count) for name, _, count in (item.partition("=") for item in text.split(","))})


def _template(text: str) -> str:
    return text.removeprefix("file://")


_MEANINGS: dict[str, Meaning] = {
    **{argument: Sets(option) for option, argument in ALIASES.items()},
    **{argument: Lacks(reason) for argument, reason in OURS.items()},
    **{argument: Lacks(reason) for argument, reason in ALONE.items() if argument not in ("runner", "convert")},
    **{argument: Lacks(reason) for argument, reason in REMOVED.items()},
    **{argument: Lacks(NO_EFFECT[argument]) for argument in ("disable_log_stats", "use_tqdm_on_load")},
    "model": Sets("model_id"),
    "revision": Sets("revision"),
    "served_model_name": Sets("served_model_name"),
    "max_model_len": Sets("max_model_len", _integer),
    "max_num_batched_tokens": Sets("max_rolling_batch_prefill_tokens", _integer),
    "kv_cache_memory_bytes": Sets("kv_cache_memory_bytes", _integer),
    "dtype": Sets("dtype", _dtype),
    "data_parallel_size": Sets("min_workers"),
    "max_num_queued_reqs": Sets("job_queue_size"),
    "limit_mm_per_prompt": Sets("limit_mm_per_prompt", _limits),
    "allowed_media_domains": Sets("allowed_media_domains"),
    "reasoning_parser": Sets("reasoning_parser"),
    "chat_template": Sets("chat_template", _template),
    "allowed_origins": Sets("cors_allowed_origin", _origins),
    "scheduling_policy": Lacks("requests wait in the server's queue, which honours `priority` always"),
    "host": Passes("--host"),
    "port": Passes("--port"),
    "api_key": Exports("API_KEY", secret=True, file="LMI_API_KEY_FILE"),
    "hf_token": Exports("HF_TOKEN", secret=True),
    "download_dir": Exports("HF_HUB_CACHE"),
    "otlp_traces_endpoint": Lacks(
        "vLLM sends gRPC, this server HTTP: set OTEL_EXPORTER_OTLP_TRACES_ENDPOINT to the collector's URL for that, such as "
        "http://collector:4318/v1/traces"
    ),
    "override_generation_config": Lacks("change the model's generation_config.json, and set option.generation_config=auto"),
    "lora_modules": Lacks("put each adapter in a folder adapters/<name> beside this file, and set option.enable_lora=true"),
    "enable_sleep_mode": Lacks(_SLEEP),
    "sleep_mode_offload_cudagraph": Lacks(_SLEEP),
    "sleep_preserve_parameter_names": Lacks(_SLEEP),
    "config": Lacks("pass the entries of this file as flags"),
    "chat_template_content_format": Sets("chat_template_content_format"),
    "enable_auto_tool_choice": Sets("enable_auto_tool_choice"),
    "tool_call_parser": Sets("tool_call_parser"),
    "tool_parser_plugin": Lacks(_CODE),
    "reasoning_parser_plugin": Lacks(_CODE),
    "middleware": Lacks(_CODE),
    "io_processor_plugin": Lacks(_CODE),
    "tool_strict_level": Lacks(_PER_REQUEST),
    "tool_server": Lacks("tools are called by the client"),
    "trust_request_chat_template": Lacks("a request's own template is not used"),
    "trust_request_mm_kwargs": Lacks("requests do not configure the image processor"),
    "default_chat_template_kwargs": Sets("default_chat_template_kwargs"),
    "response_role": Lacks("the role of answers is assistant"),
    "return_tokens_as_token_ids": Lacks("tokens are texts"),
    "exclude_tools_when_tool_choice_none": Lacks(_PER_REQUEST),
    "enable_prompt_tokens_details": Lacks(_ALWAYS),
    "enable_force_include_usage": Lacks(f"{_PER_REQUEST}, with stream_options"),
    "enable_tokenizer_info_endpoint": Lacks("there is no such route"),
    "enable_per_request_metrics": Lacks(_METRICS),
    "enable_server_load_tracking": Lacks(_METRICS),
    "sse_keep_alive_interval": Sets("sse_keep_alive"),
    "max_log_len": Lacks(_NEVER_LOGGED),
    "enable_log_outputs": Lacks(_NEVER_LOGGED),
    "enable_log_deltas": Lacks(_NEVER_LOGGED),
    "log_error_stack": Lacks("the log has the cause of every error"),
    "enable_request_id_headers": Lacks(_ALWAYS),
    "fingerprint_mode": Lacks("answers have a fingerprint of the model"),
    "fingerprint_value": Lacks("answers have a fingerprint of the model"),
    "disable_uvicorn_access_log": Lacks("the log has a line per request"),
    "disable_access_log_for_endpoints": Lacks("the log has a line per request"),
    "uvicorn_log_level": Lacks(_GUNICORN),
    "h11_max_incomplete_event_size": Lacks(_GUNICORN),
    "h11_max_header_count": Lacks(_GUNICORN),
    "disable_fastapi_docs": Lacks("/openapi.json is always there"),
    "enable_offline_docs": Lacks("/openapi.json is always there"),
    "allow_credentials": Lacks("browsers need no cookies here; send the API key as a bearer token"),
    "allowed_methods": Lacks("the methods of each route are allowed"),
    "allowed_headers": Lacks("the headers that clients of these APIs send are allowed"),
    "ssl_keyfile": Lacks(_TLS),
    "ssl_certfile": Lacks(_TLS),
    "ssl_ca_certs": Lacks(_TLS),
    "ssl_cert_reqs": Lacks(_TLS),
    "ssl_ciphers": Lacks(_TLS),
    "enable_ssl_refresh": Lacks(_TLS),
    "root_path": Lacks("let the proxy remove the prefix"),
    "uds": Lacks("use gunicorn's own: gunicorn -b unix:.. -c python:lmi_handlers.gunicorn_conf"),
    "api_server_count": Sets("web_workers"),
    "headless": Lacks(_ONE_PROCESS),
    "grpc": Lacks("there is no gRPC"),
    "grpc_port": Lacks("there is no gRPC"),
    "data_parallel_supervisor_port": Lacks(_ONE_PROCESS),
    "dp_supervisor_probe_interval_s": Lacks(_ONE_PROCESS),
    "dp_supervisor_probe_timeout_s": Lacks(_ONE_PROCESS),
    "dp_supervisor_probe_failure_threshold": Lacks(_ONE_PROCESS),
    "tokens_only": Lacks(_BEHIND),
    "enable_scale_out": Lacks(_BEHIND),
    "cohere_is_reasoning_model": Lacks("Cohere's own API is not served"),
    "cohere_format": Lacks("Cohere's own API is not served"),
    "anthropic_disabled_thinking_effort": Lacks("without `thinking`, models do not think if their template can turn it off"),
    "enable_flash_late_interaction": Lacks("late interaction is not served"),
    "shutdown_timeout": Lacks("requests in flight may finish, for up to 23 s"),
}  # fmt: skip
"""Flag, with underscores -> what it means here."""

CHANGES_ANSWERS = (
    "config",
    "enable_force_include_usage",
    "logits_processors",
    "lora_modules",
    "middleware",
    "override_generation_config",
    "tokenizer",
    "tool_parser_plugin",
)
"""Flags without a counterpart here, so that answers differ from vLLM's."""

_VARIABLES = {
    "HF_TOKEN": Exports("HF_TOKEN", secret=True),
    "HUGGING_FACE_HUB_TOKEN": Exports("HF_TOKEN", secret=True),
    "VLLM_API_KEY": Exports("API_KEY", secret=True),
}

_ONLY_IN_THE_IMAGE = Lacks("only SageMaker's image of vLLM reads it, plain vLLM does not")

_TASKS = {"embed": "text-embedding", "classify": "text-ranking", "score": "text-ranking", "reward": "text-ranking"}


def translate_vllm(
    text: str, options: Mapping[str, DeclaredOption], environ: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the serving.properties for a command of vLLM. `environ` is what its shell would know. Raises `ConfigError`."""
    command = read_command(text, _PROGRAMS, ("vllm",), environ)
    words = [_LEVEL.sub("-O=", word) for word in command.words]
    translation = Translation("vllm", dict(options))
    translation.set("rolling_batch", "vllm", "vllm serve")
    for key, text in VLLM_DEFAULTS.items():
        translation.lines[key] = text, "vllm's default"
    translation.set("tensor_parallel_degree", "1", "vllm's default")
    is_of_sagemaker = command.container is not None and any(name.startswith(SM_VLLM) for name in command.environ)
    if is_of_sagemaker:
        translation.set("output_formatter", "sse", "/invocations streams events, as in SageMaker's image of vLLM")
    for name, value in command.environ.items():
        if not name.startswith(SM_VLLM):
            translation.add_variable(name, value, _VARIABLES)
        elif is_of_sagemaker:
            add_variable(translation, name, value)
        else:
            translation.add(_ONLY_IN_THE_IMAGE, name, [value])
    groups: dict[str, dict[str, Any]] = {}
    has_model = False
    for flag, values in read_flags(words, number_of_values, _SHORT):
        group, is_part, path = flag.partition(".")
        if not flag:
            if has_model:
                raise ConfigError(f"vllm serve takes one model, but {values[0]!r} is a second one")
            has_model = True
            translation.add(_MEANINGS["model"], "model", values)
        elif is_part:
            _put(groups.setdefault(group.replace("-", "_"), {}), path.split("."), values[0])
        else:
            add_flag(translation, flag, values)
    for name, parts in groups.items():
        translation.set(name, json.dumps(parts), f"--{name.replace('_', '-')}.*")
    translation.add_surroundings(command, _PORT_OF_SAGEMAKER if is_of_sagemaker else _PORT)
    return translation.render()


def flag_of(variable: str) -> str:
    """Return the flag of a variable of SageMaker's image, without its dashes."""
    return variable.removeprefix(SM_VLLM).lower().replace("_", "-")


def add_variable(translation: Translation, name: str, text: str) -> None:
    """Add the flag that a variable of SageMaker's image sets. Raises `ConfigError`.

    `SM_VLLM_MAX_MODEL_LEN=4096` is `--max-model-len 4096`. `true` is a flag without a value, and so is an empty text if
    the flag takes none; `false` is no flag at all, and a JSON array is several values. Source: AWS's documentation of that
    image.
    """
    flag, text = flag_of(name), text.strip()
    if flag and text.lower() != "false" and (text or number_of_values(flag) == 0):
        try:
            add_flag(translation, flag, _values(text))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error


def _values(text: str) -> list[str]:
    if text.lower() in ("", "true"):
        return []
    if text.startswith("["):
        try:
            items = json.loads(text)
        except ValueError:
            return [text]
        if not items:
            raise ConfigError("there is no value in []")
        return [item if isinstance(item, str) else json.dumps(item) for item in items]
    return [text]


def number_of_values(flag: str) -> int:
    """Return how many values a flag has, 0, 1 or `MANY`. One that is unknown has 1."""
    if flag == "disable-access-log-for-endpoints":
        return 1
    if flag in _SWITCHES or flag.startswith(("enable-", "disable-", "no-")):
        return 0
    return MANY if flag in _LISTS else 1


def add_flag(translation: Translation, flag: str, values: list[str]) -> None:
    """Add a flag, without its dashes. Raises `ConfigError`."""
    is_off = flag.startswith("no-") and not values
    name = flag.removeprefix("no-").replace("-", "_") if is_off else flag.replace("-", "_")
    if name in ("runner", "convert", "task"):
        if not values:
            raise ConfigError(f"--{flag} has no value")
        _add_task(translation, flag, values[0])
        return
    translation.add(_MEANINGS.get(name, Sets(name)), f"--{flag}", values, "false" if is_off else "true")


def _add_task(translation: Translation, flag: str, text: str) -> None:
    if (task := _TASKS.get(text)) is not None:
        translation.set("task", task, f"--{flag} {text}")
    elif text not in ("auto", "generate", "none"):
        translation.remarks.append(f"--{flag} {text}: set option.task to text-embedding or text-ranking")


def _put(group: dict[str, Any], path: list[str], text: str) -> None:
    """Set what `--group.first.second text` means. Raises `ConfigError` if `first` has a value of its own.

    `--group.first+ a,b` is a list, and lists add up.
    """
    *above, last = path
    value: Any = text
    if last.endswith("+"):
        last, value = last[:-1], text.split(",")
    else:
        with contextlib.suppress(ValueError):
            value = _number(text)
        with contextlib.suppress(ValueError):
            value = json.loads(text)
    for name in above:
        group = group.setdefault(name, {})
        if not isinstance(group, dict):
            raise ConfigError(f"{'.'.join(path)} is set twice")
    known = group.get(last)
    group[last] = known + value if isinstance(known, list) and isinstance(value, list) else value
