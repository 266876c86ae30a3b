"""vLLM's error messages on one line, and the option that a failed start is about."""

from __future__ import annotations

import re

from vllm import EngineArgs

from backends.vllm.engine_args import option_of
from lmi_handlers.core.errors import ConfigError

_LONGEST_REASON = 400


def load_error(error: Exception, arguments: EngineArgs) -> ConfigError:
    """Return a one-line error that says why vLLM does not start and names the option that its message is about."""
    reason = _words(error)
    quantization = arguments.quantization
    if quantization is not None and re.search(rf"\b{re.escape(str(quantization))}\b", reason):
        argument = "quantization"
    else:
        argument = next((name for name in vars(arguments) if _names(reason, name, arguments)), "model")
    if argument == "model" and re.search(r"\bmemory\b", reason):
        argument = "gpu_memory_utilization"
    return ConfigError(f"{option_of(argument)}: vLLM cannot serve {arguments.model}: {_shortened(reason)}")


def _names(text: str, name: str, arguments: EngineArgs) -> bool:
    """Tell whether vLLM's message is about the argument `name`.

    vLLM writes `load_format` in some messages and "Load format" in others. The spelling with a space only counts if the
    argument differs from its default. Names of a single word are ignored, except `dtype` and `quantization`, because
    they are too common.
    """
    words = name.split("_")
    if len(words) == 1 and name not in ("dtype", "quantization"):
        return False
    between = "[ _]" if getattr(arguments, name) != getattr(EngineArgs, name, None) else "_"
    return re.search(rf"\b{between.join(words)}\b", text, re.IGNORECASE) is not None


def one_line(error: Exception) -> str:
    """Return vLLM's message, shortened."""
    return _shortened(_words(error))


def _words(error: Exception) -> str:
    """Return vLLM's message on one line, without what pydantic adds to it."""
    text = str(error) or type(error).__name__
    if found := re.search(r"Value error, (.*?)(?: \[type=|$)", text, re.DOTALL):
        text = found[1]
    return " ".join(re.sub(r"\[type=.*", "", text, flags=re.DOTALL).split())


def _shortened(text: str) -> str:
    """Cut a long message after a whole sentence. vLLM sometimes goes on to list hundreds of names."""
    if len(text) <= _LONGEST_REASON:
        return text
    end = text.rfind(". ", 0, _LONGEST_REASON) + 1
    return text[:end] if end else f"{text[:_LONGEST_REASON]}..."
