"""Keeps transformers from changing a model by an adapter that lies beside its weights."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

_ASKING = ("transformers.models.auto.auto_factory", "transformers.integrations.peft", "transformers.modeling_utils")
"""Modules that ask whether peft is installed before they look for an adapter."""

_QUESTION = "is_peft_available"


@contextlib.contextmanager
def without_adapters() -> Iterator[None]:
    """Let transformers load models as if peft were not installed.

    Otherwise answers would depend on that: with peft, an adapter_config.json in the model's folder is enough. The other
    engines read the weights only, and adapters have folders of their own.
    """
    modules = [module for name in _ASKING if hasattr(module := importlib.import_module(name), _QUESTION)]
    originals = [getattr(module, _QUESTION) for module in modules]
    for module in modules:
        setattr(module, _QUESTION, lambda: False)
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            setattr(module, _QUESTION, original)
