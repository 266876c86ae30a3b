"""The modules that handlers import from LMI (`djl_python`) and from SageMaker's toolkits (`sagemaker_inference`, ..).

Only the processes that run a model's own code have them. A name that exists in LMI 0.28 to 0.36, but not here, raises an
`ImportError` that says what to use instead. So do the packages of other model servers.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from lmi_handlers.core.plugins import importing

LMI_VERSION = "0.36.0"

_SESSIONS = {"Session": "sessions", "SessionManager": "sessions"}
_DECORATORS = "decorators"

PROVIDED: dict[str, dict[str, str]] = {
    "djl_python": {"Input": "inputs", "Output": "outputs", "PairList": "pair_list", **_SESSIONS},
    "djl_python.async_utils": dict.fromkeys(
        ("create_non_stream_output", "create_stream_chunk_output", "handle_streaming_response"), "async_utils"
    ),
    "djl_python.encode_decode": dict.fromkeys(("decode", "decode_csv", "encode", "encode_csv"), "encode_decode"),
    "djl_python.huggingface": dict.fromkeys(("HuggingFaceService", "StopWord", "handle"), "hugging_face"),
    "djl_python.input_parser": dict.fromkeys(("init_handler", "input_formatter", "prediction_handler"), _DECORATORS),
    "djl_python.inputs": {"Input": "inputs"},
    "djl_python.np_util": {"from_nd_list": "ndlist:decode", "to_nd_list": "ndlist:encode"},
    "djl_python.output_formatter": {
        "RequestOutput": "request_io",
        "TextGenerationOutput": "request_io",
        "output_formatter": _DECORATORS,
    },
    "djl_python.outputs": {"Output": "outputs"},
    "djl_python.pair_list": {"PairList": "pair_list"},
    "djl_python.request_io": dict.fromkeys(
        ("RequestInput", "RequestOutput", "Sequence", "TextGenerationOutput", "TextInput", "Token"), "request_io"
    ),
    "djl_python.session_manager": {**_SESSIONS},
    "djl_python.session_utils": dict.fromkeys(
        (
            "HEADER_SAGEMAKER_CLOSED_SESSION_ID",
            "HEADER_SAGEMAKER_SESSION_ID",
            "close_session",
            "create_session",
            "get_session",
            "session_non_stream_output_formatter",
        ),
        "session_utils",
    ),
    "djl_python.streaming_utils": dict.fromkeys(("HFStreamer", "StreamingUtils"), "streaming"),
    "sagemaker_huggingface_inference_toolkit": {},
    "sagemaker_huggingface_inference_toolkit.content_types": dict.fromkeys(("CSV", "JSON", "NPY"), "content"),
    "sagemaker_huggingface_inference_toolkit.decoder_encoder": dict.fromkeys(("decode", "encode"), "pipeline_content"),
    "sagemaker_inference": {},
    "sagemaker_inference.content_types": dict.fromkeys(
        ("ANY", "CSV", "JSON", "NPY", "NPZ", "OCTET_STREAM", "UTF8_TYPES"), "content"
    ),
    "sagemaker_inference.decoder": {"decode": "content"},
    "sagemaker_inference.encoder": {"SUPPORTED_CONTENT_TYPES": "content", "encode": "content"},
    "sagemaker_inference.errors": {
        "BaseInferenceToolkitError": "toolkit_errors",
        "GenericInferenceToolkitError": "toolkit_errors",
        "UnsupportedFormatError": "content:ContentError",
    },
}
"""Module, name, and where it is in this folder: `module`, or `module:name` if it has another name there."""

_ENGINE = (
    "the server runs the engine itself: remove model.py and set option.rolling_batch, or call the engine's own library"
)
_CHATS = "call tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)"
_PROPERTIES = "read the options with inputs.get_properties() in the first call"
_PROTOCOL = "it is LMI's own server process: define handle(inputs) in model.py, and the server calls it"
_NEURON = "AWS Neuron is not supported"
_OTHER_SERVER = (
    "handlers are not supported: define handle(inputs) in model.py, or model_fn and predict_fn in code/inference.py"
)
_TOOLKIT = "use sagemaker_inference.decoder and sagemaker_inference.encoder"

REFUSED: dict[str, str] = {
    "djl_python.adapter_formatter_mixin": "put an adapter's formatters into its own model.py",
    "djl_python.adapter_manager_mixin": "the server loads adapters: set option.enable_lora=true",
    "djl_python.arg_parser": _PROTOCOL,
    "djl_python.async_utils": "load adapters in handle(inputs): its other functions for them are not called",
    "djl_python.aws": "use boto3; LMI_EMF=true publishes the server's own metrics",
    "djl_python.chat_completions": _CHATS,
    "djl_python.custom_formatter_handling": "decorate functions with @input_formatter and @output_formatter",
    "djl_python.custom_handler_service": "define async def handle(inputs) in model.py",
    "djl_python.deepspeed": "DeepSpeed is not supported: set option.rolling_batch=vllm",
    "djl_python.fastertransformer": "FasterTransformer is not supported: set option.rolling_batch=vllm",
    "djl_python.huggingface": "use HuggingFaceService, or transformers itself",
    "djl_python.import_utils": "import the library itself",
    "djl_python.input_parser": "read the body with djl_python.encode_decode.decode(inputs, content_type)",
    "djl_python.inputs": _PROTOCOL,
    "djl_python.lmcache_utils": _ENGINE,
    "djl_python.lmi_trtllm": _ENGINE,
    "djl_python.lmi_vllm": _ENGINE,
    "djl_python.multimodal": "use inputs.get_as_image(), or Pillow",
    "djl_python.neuron_utils": _NEURON,
    "djl_python.np_util": "use from_nd_list and to_nd_list",
    "djl_python.output_formatter": "decorate a function with @output_formatter",
    "djl_python.properties_manager": _PROPERTIES,
    "djl_python.python_async_engine": _PROTOCOL,
    "djl_python.python_sync_engine": _PROTOCOL,
    "djl_python.request": "use djl_python.request_io",
    "djl_python.request_io": "use Sequence, Token and TextGenerationOutput",
    "djl_python.rolling_batch": _ENGINE,
    "djl_python.sagemaker": "put model_fn and predict_fn into code/inference.py",
    "djl_python.seq_scheduler": _ENGINE,
    "djl_python.service_loader": _PROTOCOL,
    "djl_python.session_manager": "use SessionManager",
    "djl_python.session_utils": "use create_session, get_session and close_session",
    "djl_python.sklearn_handler": "set option.entryPoint=djl_python.sklearn_handler, and define @init_handler in model.py",
    "djl_python.sm_log_filter": "use logging",
    "djl_python.stable_diffusion_inf2": _NEURON,
    "djl_python.streaming_utils": "use StreamingUtils or HFStreamer",
    "djl_python.telemetry": "the server has metrics of its own at /metrics",
    "djl_python.tensorrt_llm": "set option.rolling_batch=trtllm",
    "djl_python.tensorrt_llm_python": "set option.rolling_batch=trtllm",
    "djl_python.test_model": "run `lmi run --model-dir . --input payload.json`",
    "djl_python.three_p": "use the request's body as it is",
    "djl_python.transformers_neuronx": _NEURON,
    "djl_python.transformers_neuronx_scheduler": _NEURON,
    "djl_python.ts_service_loader": "put handle(inputs) into model.py, or model_fn and predict_fn into code/inference.py",
    "djl_python.utils": "read requests with inputs.get_batches()",
    "djl_python.xgboost_handler": "set option.entryPoint=djl_python.xgboost_handler, and define @init_handler in model.py",
    "mms": f"Multi Model Server's {_OTHER_SERVER}",
    "model_hosting_container_standards": f"its {_OTHER_SERVER}",
    "sagemaker_containers": "output_fn returns (content, content_type), and sagemaker_inference.encoder writes arrays",
    "sagemaker_huggingface_inference_toolkit": "scripts need decoder_encoder and content_types only",
    "sagemaker_inference": "scripts need content_types, decoder, encoder and errors only",
    "sagemaker_pytorch_serving_container": _TOOLKIT,
    "sagemaker_sklearn_container": _TOOLKIT,
    "ts": f"TorchServe's {_OTHER_SERVER}",
}
"""Names of LMI and other servers that are not provided, with a replacement for each. A package covers its modules."""

_REPLACED = "djl_python"
"""LMI's package is always ours, because `Input` and `Output` must be. Others are ours unless they are installed."""

_HERE = __package__

_PATH = str(Path(__file__).parent / "compat")
"""Packages here call `provide`: a process that a handler spawns inherits `sys.path`, but not the finders."""

_ROOT = os.path.realpath(Path(__file__).parents[2])
"""The folder on `sys.path` with the server's packages."""

_HIDDEN = ("backends", "formatters")
"""The server's other packages. No process that runs a model's code uses them, so its own modules may be called so."""


def provide(package: str | None = None) -> None:
    """Let `import djl_python` and the like find what is here, and `import formatters` a model's own module.

    May be called more than once. `package` is the one that has just been found on `sys.path`, and is replaced.
    """
    sys.path[:] = [*(path for path in sys.path if path != _PATH), _PATH]  # last: a model's own packages come first
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        packages = {name.partition(".")[0] for name in (*PROVIDED, *REFUSED)} - {_REPLACED}
        sys.meta_path[:] = [_Finder(_REPLACED), _ModelFirst(), *sys.meta_path, *map(_Finder, sorted(packages))]
    if package is not None:
        sys.modules[package] = module_from_spec(_spec(package, _Finder(package)))


class _Finder(Loader):
    """Finds the modules of the tables above that are in one package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        known = name in PROVIDED or _instead(name) is not None
        return _spec(name, self) if known and name.split(".")[0] == self._package else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Provided(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed: names are found when they are asked for."""


class _ModelFirst(MetaPathFinder):
    """Finds a model's own module where the server has a package of the same name."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name not in _HIDDEN:
            return None
        return PathFinder.find_spec(name, [entry for entry in sys.path if os.path.realpath(entry) != _ROOT])


class _Provided(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self.__name__
        if (place := PROVIDED.get(module, {}).get(name)) is not None:
            where, _, attribute = place.partition(":")
            with importing():
                value = getattr(importlib.import_module(f"{_HERE}.{where}"), attribute or name)
            setattr(self, name, value)
            return value
        if f"{module}.{name}" in PROVIDED or f"{module}.{name}" in REFUSED:
            return importlib.import_module(f"{module}.{name}")
        if (instead := _instead(module)) is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise ImportError(f"{module}.{name} is not provided: {instead}")

    def __dir__(self) -> Sequence[str]:
        return sorted(self.__all__)

    @property
    def __all__(self) -> Sequence[str]:
        return [*PROVIDED.get(self.__name__, {})]

    @property
    def __version__(self) -> str:
        """The newest version of LMI whose names are provided."""
        return LMI_VERSION


def _spec(name: str, loader: Loader) -> ModuleSpec:
    return ModuleSpec(name, loader, is_package=True)


def _instead(module: str) -> str | None:
    """Return what to use in place of a module, or of the package that it is in."""
    while module:
        if module in REFUSED:
            return REFUSED[module]
        module = module.rpartition(".")[0]
    return None
