"""`SM_VLLM_*`: the variables that SageMaker's image of vLLM turns into flags of `vllm serve`.

`SM_VLLM_MAX_MODEL_LEN=4096` is `--max-model-len 4096`. `true` is a flag without a value, and so is an empty text if the
flag takes none; `false` is no flag at all, and a JSON array is several values. Source: AWS's documentation of that image.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from lmi_handlers.config.option import DeclaredOption
from lmi_handlers.config.variables import SM_VLLM, Given
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.migration.translation import Translation
from lmi_handlers.migration.vllm import CHANGES_ANSWERS, add_flag, number_of_values


def given_to_vllm(environ: Mapping[str, str], options: Mapping[str, DeclaredOption]) -> Iterator[Given]:
    """Yield what each `SM_VLLM_*` variable sets.

    A flag without a counterpart is a note. Raises `ConfigError` for values that cannot be read, and for keys and tokens:
    the server reads those from variables of their own.
    """
    for name, text in sorted(environ.items()):
        flag = name.removeprefix(SM_VLLM).lower().replace("_", "-")
        if not name.startswith(SM_VLLM) or not flag or text.strip().lower() == "false":
            continue
        if not text.strip() and number_of_values(flag) != 0:
            continue
        translation = Translation("vllm", dict(options))
        try:
            add_flag(translation, flag, _values(text.strip()))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
        for key, (value, _) in translation.lines.items():
            yield Given(name, key, value)
        for variable in translation.environ:
            raise ConfigError(f"{name} is not supported: set {variable} instead")
        for remark in (*translation.remarks, *(f"use lmi serve {option}" for option in translation.arguments)):
            note, changes = remark.removeprefix(f"--{flag}: "), flag.replace("-", "_") in CHANGES_ANSWERS
            yield Given(name, note=note, changes_answers=changes)


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
