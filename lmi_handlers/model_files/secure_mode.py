"""SageMaker's secure mode: what the platform forbids to those who bring the model. Source: DJL's secure-mode plugin.

It is checked before anything of the model is loaded or imported. DJL overlooks chat templates outside of
tokenizer_config.json, folders behind links, and controls that it does not know; these are refused here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from lmi_handlers.config.environment import Variable, declared_variables, read_values
from lmi_handlers.config.no_effect import TGI_NO_EFFECT
from lmi_handlers.config.not_provided import SCRIPTS
from lmi_handlers.config.properties import LOADING_REQUEST, LoadedProperties
from lmi_handlers.config.variables import SM_VLLM_DEFAULTS
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import read_gguf_header

NO_REQUIREMENTS = "DISALLOW_REQUIREMENTS_TXT"
NO_PICKLE = "DISALLOW_PICKLE_FILES"
NO_REMOTE_CODE = "DISALLOW_TRUST_REMOTE_CODE"
NO_SCRIPTS = "DISALLOW_CUSTOM_INFERENCE_SCRIPTS"
NO_CHAT_TEMPLATE = "DISALLOW_CHAT_TEMPLATE"
_KNOWN = (NO_REQUIREMENTS, NO_PICKLE, NO_REMOTE_CODE, NO_SCRIPTS, NO_CHAT_TEMPLATE)

_REQUIREMENTS = ("requirements.txt", "code/requirements.txt")
_PICKLE = re.compile(r".*\.(bin|pt|pth|ckpt|pkl|pickle|joblib)", re.IGNORECASE | re.DOTALL)
_CONFIGS = ("tokenizer_config.json", "chat_template.json", "processor_config.json", "preprocessor_config.json")
_MAX_FILES = 100_000
_PLATFORM = re.compile(f"(SAGEMAKER|SERVING)_|{re.escape(SM_VLLM_DEFAULTS)}")
"""The variables that the platform sets, and what stands for the mere defaults of its image of vLLM."""

_ALLOWED_OPTIONS = """
mpi_mode entryPoint task model_id batch_size tensor_parallel_degree pipeline_parallel_degree rolling_batch dtype
trust_remote_code revision max_rolling_batch_size parallel_loading model_loading_timeout output_formatter
n_positions load_in_8bit unroll context_length_estimate low_cpu_mem_usage load_split_model compiled_graph_path
group_query_attention enable_mixed_precision_accumulation enable_saturate_infinity speculative_draft_model
speculative_length draft_model_compiled_path quantize max_rolling_batch_prefill_tokens max_model_len load_format
enforce_eager gpu_memory_utilization draft_model_tp_size record_acceptance_rate enable_lora max_loras max_lora_rank
lora_extra_vocab_size max_cpu_loras max_input_len max_output_len max_num_tokens use_custom_all_reduce
tokens_per_block batch_scheduler_policy kv_cache_free_gpu_mem_fraction max_num_sequences enable_trt_overlap
enable_kv_cache_reuse baichuan_model_version chatglm_model_version gpt_model_version multi_block_mode use_fused_mlp
rotary_base rotary_dim rotary_scaling_type rotary_scaling_factor logits_dtype trtllm_checkpoint_path load_by_shard
smoothquant_alpha smoothquant_per_token smoothquant_per_channel multi_query_mode awq_format awq_calib_size q_format
calib_size calib_batch_size use_fp8_context_fmha enable_chunked_prefill cpu_offload_gb_per_gpu enable_prefix_caching
disable_sliding_window enable_streaming tgi_compat pythonExecutable
"""
ALLOWED = frozenset(
    (
        "engine",
        "job_queue_size",
        "max_idle_time",
        "batch_size",
        "max_batch_delay",
        "max_dynamic_batch_size",
        "minWorkers",
        "maxWorkers",
        "load_on_devices",
        *(f"option.{name}" for name in _ALLOWED_OPTIONS.split()),
    )
)
"""The names that may be set, which are DJL's."""


def _list(text: str) -> tuple[str, ...]:
    return tuple(name for item in text.split(",") if (name := item.strip()))


def _directories(text: str) -> tuple[Path, ...]:
    return tuple(map(Path, _list(text)))


class SecureMode(msgspec.Struct, frozen=True, kw_only=True):
    """The `controls` to enforce, and the directories, `channels`, whose files nobody vouches for."""

    enabled: Annotated[
        bool, Variable("SAGEMAKER_SECURE_MODE", "SageMaker's secure mode: enforce `SAGEMAKER_SECURITY_CONTROLS`.")
    ] = False
    controls: Annotated[
        tuple[str, ...],
        Variable("SAGEMAKER_SECURITY_CONTROLS", "What secure mode forbids, separated by commas.", read=_list),
    ] = ()
    channels: Annotated[
        tuple[Path, ...],
        Variable(
            "SAGEMAKER_UNTRUSTED_CHANNELS",
            "Directories whose files secure mode searches, with all folders below, separated by commas.",
            read=_directories,
        ),
    ] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> SecureMode | None:
        """Return what the platform has asked for, or None if it has not. Raises `ConfigError` if that is not clear."""
        mode = cls(**read_values(cls, environ))
        if not mode.enabled:
            return None
        controls = declared_variables(cls)["controls"].variable.name
        if controls not in environ:
            raise ConfigError(
                f"SAGEMAKER_SECURE_MODE=true needs {controls}, the controls to enforce: {', '.join(_KNOWN)}"
            )
        for name in mode.controls:
            if name not in _KNOWN:
                raise ConfigError(f"{controls}: {name} is not known, and is not enforced: use {', '.join(_KNOWN)}")
        return mode

    def check(self, loaded: LoadedProperties, model_dir: Path | None, *, has_custom_code: bool) -> None:
        """Check the configuration and all channels. Raises `ConfigError` for the first thing that is forbidden."""
        for setting in loaded.explicit:
            is_platforms = _PLATFORM.match(setting.variable) or setting.source == LOADING_REQUEST
            if setting.key not in (*ALLOWED, *TGI_NO_EFFECT) and not is_platforms:
                raise ConfigError(f"{setting.key} ({setting.source}) must not be set in secure mode")
        properties = loaded.properties
        if NO_REMOTE_CODE in self.controls and properties.trust_remote_code:
            raise ConfigError("option.trust_remote_code=true is forbidden in secure mode")
        entry_point = properties.entry_point or "djl_python."
        if NO_SCRIPTS in self.controls and (has_custom_code or not entry_point.startswith("djl_python.")):
            raise ConfigError("a model's own code is forbidden in secure mode (model.py, option.entryPoint, scripts)")
        for directory in () if model_dir is None else (model_dir,):
            self._check_names(directory)
        for channel in self.channels:
            if not channel.is_dir():
                raise ConfigError(f"SAGEMAKER_UNTRUSTED_CHANNELS: {channel} is not a directory")
            self._check_files(channel)

    def check_model(self, directory: Path) -> None:
        """Check a model or an adapter that was fetched from elsewhere. Raises `ConfigError`."""
        self._check_names(directory)
        self._check_files(directory)

    def _check_names(self, directory: Path) -> None:
        """Refuse what would be run, at the places where it is looked for."""
        for control, names in ((NO_SCRIPTS, SCRIPTS), (NO_REQUIREMENTS, _REQUIREMENTS)):
            found = (path for name in names for path in directory.glob(name)) if control in self.controls else ()
            for path in found:
                raise ConfigError(f"{path} is forbidden in secure mode ({control})")

    def _check_files(self, directory: Path) -> None:
        for path in _files(directory):
            for control, is_forbidden in _FORBIDDEN.items():
                if control in self.controls and is_forbidden(path):
                    raise ConfigError(f"{path} is forbidden in secure mode ({control})")


def check_fetched(directory: Path) -> None:
    """Check a model or an adapter that was downloaded or unpacked, if this is secure mode. Raises `ConfigError`."""
    if (mode := SecureMode.from_environ(os.environ)) is not None:
        mode.check_model(directory)


def _is_pickle(path: Path) -> bool:
    return _PICKLE.fullmatch(path.name) is not None


def _has_chat_template(path: Path) -> bool:
    """Tell whether a file has a chat template, or cannot be read. Raises `ConfigError` for a damaged GGUF file."""
    name = path.name.lower()
    if name.endswith(".gguf"):
        return any(key.startswith("tokenizer.chat_template") for key in read_gguf_header(path).metadata)
    if name not in _CONFIGS:
        return name.endswith((".jinja", ".jinja2"))
    try:
        return "chat_template" in msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return True


_FORBIDDEN: dict[str, Callable[[Path], bool]] = {NO_PICKLE: _is_pickle, NO_CHAT_TEMPLATE: _has_chat_template}


def _files(directory: Path) -> Iterator[Path]:
    """Yield the files in a directory and below, each folder once even if links lead to it. Raises `ConfigError`."""
    seen, count = set(), 0
    for folder, folders, names in os.walk(directory, followlinks=True, onerror=_raise):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        count += len(names)
        if count > _MAX_FILES:
            raise ConfigError(f"{directory} has more than {_MAX_FILES} files, too many to check in secure mode")
        yield from (Path(folder, name) for name in names)


def _raise(error: OSError) -> None:
    raise error
