"""The functions of a model's own code that load and unload adapters, in the process that has imported it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.custom_code.call import to_outputs
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.messages import Batch
from lmi_handlers.custom_code.outputs import FAILURE, Output

_GENERIC = ("", "OK", FAILURE)
"""Messages of an output that give no reason."""


def adapter_function(batch: Batch, code: CustomCode) -> Callable[[Input], Any] | None:
    """Return the function for adapters that a batch asks for, or None if it is for the one that answers requests.

    What the returned function answers has the status of the code's own answer and, as content, its reason for an error.
    """
    name = batch.adapter_function
    if not name:
        return None
    function: Callable[[Input], Any] = getattr(sys.modules[Path(code.path).stem], name)

    async def call(inputs: Input) -> Output:
        result = function(inputs)
        return _answer(await result if inspect.isawaitable(result) else result, name)

    return call


def _answer(result: Any, name: str) -> Output:
    output = to_outputs(result)
    if not isinstance(output, Output) or output.stream_content is not None:
        raise TypeError(f"{name} must return an Output without a stream")
    return Output(output.code).add(output.data() if output.message in _GENERIC else str(output.message))
