"""`SM_VLLM_*`: the variables that SageMaker's image of vLLM turns into flags of `vllm serve`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lmi_handlers.config.option import DeclaredOption
from lmi_handlers.config.variables import SM_VLLM, Given
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.migration.translation import Translation
from lmi_handlers.migration.vllm import CHANGES_ANSWERS, add_variable, flag_of


def given_to_vllm(environ: Mapping[str, str], options: Mapping[str, DeclaredOption]) -> Iterator[Given]:
    """Yield what each `SM_VLLM_*` variable sets.

    A flag without a counterpart is a note. Raises `ConfigError` for values that cannot be read, and for keys and tokens:
    the server reads those from variables of their own.
    """
    for name, text in sorted(environ.items()):
        if not name.startswith(SM_VLLM):
            continue
        translation, flag = Translation("vllm", dict(options)), flag_of(name)
        add_variable(translation, name, text)
        for key, (value, _) in translation.lines.items():
            yield Given(name, key, value)
        for variable in translation.environ:
            raise ConfigError(f"{name} is not supported: set {variable} instead")
        for remark in (*translation.remarks, *(f"use lmi serve {option}" for option in translation.arguments)):
            note, changes = remark.removeprefix(f"--{flag}: "), flag.replace("-", "_") in CHANGES_ANSWERS
            yield Given(name, note=note, changes_answers=changes)
