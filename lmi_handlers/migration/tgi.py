"""`text-generation-launcher ..`. Source of the flags: TGI 3.3's launcher, whose every flag is also a variable."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lmi_handlers.config.no_effect import TGI_NO_EFFECT
from lmi_handlers.config.option import DeclaredOption
from lmi_handlers.config.variables import TGI
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.migration.command import read_command, read_flags
from lmi_handlers.migration.translation import Exports, Lacks, Meaning, Passes, Sets, Translation

_SWITCHES = (
    "trust-remote-code",
    "disable-custom-kernels",
    "json-output",
    "ngrok",
    "disable-grammar-support",
    "env",
    "enable-cuda-graphs",
    "enable-prefill-logprobs",
    "graceful-termination",
)
_IMAGE, _SAGEMAKERS_IMAGE = "text-generation-inference", "tgi-inference"
_PORT, _PORT_OF_THE_IMAGE, _PORT_OF_SAGEMAKER = 3000, 80, 8080

_SAGEMAKERS = {
    "HF_MODEL_ID": "MODEL_ID",
    "HF_MODEL_REVISION": "REVISION",
    "HF_MODEL_QUANTIZE": "QUANTIZE",
    "HF_MODEL_TRUST_REMOTE_CODE": "TRUST_REMOTE_CODE",
    "SM_NUM_GPUS": "NUM_SHARD",
}
"""Variables of SageMaker's image -> the launcher's, which its entrypoint overwrites with those that are not empty."""

_NO_FLAGS = (*_SAGEMAKERS, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "COMPUTE_TYPE")
"""Variables that are no flags of the launcher."""

_QUANTIZE = ("QUANTIZE", "HF_MODEL_QUANTIZE")
_NO_QUANTIZATION = {
    "eetq": "no engine has it; option.quantize=int8_per_channel_weight_only or fp8 on vllm comes nearest",
    "exl2": "no engine reads such files; use another checkpoint of the model",
    "marlin": "vllm chooses these kernels itself for checkpoints in GPTQ's and AWQ's formats",
}
"""Methods of the launcher that no engine has -> what to do."""

_SHORT = {"-p": "--port", "-e": "--env"}
_SHARDS = "the engine's processes find each other"
_NGROK = "there are no tunnels"

_OTHERS: dict[str, Meaning] = {
    **{name: Lacks(reason) for name, reason in TGI_NO_EFFECT.items()},
    "PORT": Passes("--port"),
    "HOSTNAME": Passes("--host"),
    "API_KEY": Exports("API_KEY", secret=True),
    "HF_TOKEN": Exports("HF_TOKEN", secret=True),
    "HUGGING_FACE_HUB_TOKEN": Exports("HF_TOKEN", secret=True),
    "HUGGINGFACE_HUB_CACHE": Exports("HF_HUB_CACHE"),
    "WEIGHTS_CACHE_OVERRIDE": Exports("HF_HUB_CACHE"),
    "OTLP_SERVICE_NAME": Exports("OTEL_SERVICE_NAME"),
    "JSON_OUTPUT": Lacks("logs are JSON unless they go to a terminal; LOG_FORMAT=text or json decides"),
    "PROMETHEUS_PORT": Lacks("/metrics is on the server's own port"),
    "MASTER_ADDR": Lacks(_SHARDS),
    "MASTER_PORT": Lacks(_SHARDS),
    "NGROK": Lacks(_NGROK),
    "NGROK_AUTHTOKEN": Lacks(_NGROK),
    "NGROK_EDGE": Lacks(_NGROK),
    "ENV": Lacks("lmi check shows the options in effect"),
}  # fmt: skip


def translate_tgi(
    text: str, options: Mapping[str, DeclaredOption], environ: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the serving.properties for a launcher's command. `environ` is what its shell would know.

    Raises `ConfigError`.
    """
    command = read_command(text, (("text-generation-launcher",),), (_IMAGE, _SAGEMAKERS_IMAGE), environ)
    container = command.container
    has_entrypoint = container is not None and _SAGEMAKERS_IMAGE in container.image and not container.entry_point
    of_entrypoint = _SAGEMAKERS if has_entrypoint else {}
    translation = Translation("tgi", dict(options))
    translation.set("tgi_compat", "true", "/invocations speaks TGI's API; its own routes are always there")
    given: dict[str, tuple[str, list[str]]] = {}
    # The launcher's own variables come last, to take precedence: it reads no others.
    for name, value in sorted(command.environ.items(), key=lambda item: item[0] not in _SAGEMAKERS):
        if name in of_entrypoint:
            continue
        if _meaning(name) is None:
            translation.add_variable(name, value, {})
        else:
            given[name] = name, [value]
    for flag, values in read_flags(command.words, lambda flag: int(flag not in _SWITCHES), _SHORT):
        variable = flag.upper().replace("-", "_")
        if variable in _NO_FLAGS or _meaning(variable) is None:
            raise ConfigError(
                f"text-generation-launcher has no {f'flag --{flag}' if flag else f'argument {values[0]!r}'}"
            )
        shown, before = given.get(variable, ("", []))
        is_repeated = variable == "CORS_ALLOW_ORIGIN" and shown.startswith("--")
        given[variable] = f"--{flag}", [*before, *values] if is_repeated else values
    for name, variable in of_entrypoint.items():
        if command.environ.get(name):
            given[variable] = name, [command.environ[name]]
    if has_entrypoint:
        given["PORT"] = "--port", [str(_PORT_OF_SAGEMAKER)]
    if "NUM_SHARD" in given:  # the launcher infers it from --sharded only if it has to
        given.pop("SHARDED", None)
    for variable, (shown, values) in given.items():
        if variable in _QUANTIZE and (reason := _NO_QUANTIZATION.get(values[0])) is not None:
            translation.add(Lacks(reason), f"{shown} {values[0]}", values)
        elif (meaning := _meaning(variable)) is not None:
            translation.add(meaning, shown, values)
    translation.add_surroundings(command, _PORT if container is None else _PORT_OF_THE_IMAGE)
    return translation.render()


def _meaning(variable: str) -> Meaning | None:
    """Return what one of the launcher's variables means here, or None if it is none of them."""
    if (known := TGI.get(variable)) is not None:
        return Sets(known.option, known.convert)
    return _OTHERS.get(variable)
