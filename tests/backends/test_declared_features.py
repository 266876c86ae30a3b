"""docs/backends.md is made of declarations. Here they are compared with what loaded engines say."""

from __future__ import annotations

from pathlib import Path

import pytest
from architectures import VOCAB_SIZE, save_architecture
from serving_properties import serving_properties

from backends import declaration, load_backend_class
from backends.base import ModelFiles

VLLM = ("vllm", "lmi_dist")
"""Names of the same engine: lmi-dist's declares no feature of its own."""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("without_flask")
@pytest.mark.parametrize(
    "name",
    ["echo", "transformers", "openvino", *(pytest.param(name, marks=pytest.mark.needs("vllm")) for name in VLLM)],
)
def test_a_loaded_engine_supports_what_the_page_says(name: str, tmp_path: Path) -> None:
    save_architecture("llama", tmp_path)
    files = ModelFiles(path=tmp_path, cache=tmp_path / "cache", eos_token_ids=(), vocab_size=VOCAB_SIZE)
    extra = {"kv_cache_memory_bytes": "32M"} if name in VLLM else {}
    properties = serving_properties(dtype="fp32", enforce_eager=True, extra=extra)
    backend = load_backend_class(name).load(files, properties, lambda phase: None)
    try:
        declared, capabilities = declaration(name), backend.capabilities
        assert capabilities.backend == name
        refused = set(declared.unsupported) - {"cache_salt"}
        assert refused <= set(capabilities.unsupported), "the page says no, and the engine takes it"
        # Adapters need option.enable_lora. The tokenizer of this model has one word, of which no grammar can be made.
        of_this_model: set[str] = {"structured_outputs"} if name in {"transformers", "openvino"} else set()
        others = set(capabilities.unsupported) - set(declared.conditional) - of_this_model
        assert others <= refused | {"adapters"}, "the page says yes, and the engine refuses it"
        assert capabilities.continues == ("continuation" not in declared.unsupported)
        assert capabilities.takes_cache_salt == ("cache_salt" not in declared.unsupported)
    finally:
        backend.close()
