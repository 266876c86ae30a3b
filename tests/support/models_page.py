"""The reference page of the models that are compared: `python tests/support/models_page.py > docs/models.md`."""

from __future__ import annotations

from collections import defaultdict

import transformers
from architectures import ARCHITECTURES, VLLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from backends.openvino import DECLARATION

_PAGE = """\
# Supported models

Generated from what the backends declare and what the tests compare by
`python tests/support/models_page.py > docs/models.md`.

The table has the architectures whose greedy answers are compared, token by token, with those of
`generate` of transformers, on tiny models with random weights in float32. `architectures` in a
model's config.json names its own.

* **transformers**: in the table, all are compared. Other causal language models of the installed
  version of transformers are loaded as well.
* **openvino**: `auto` takes it on a CPU for those marked "yes", and for GGUF files:
  {gguf}, with weights of these types:
  {types}. See [openvino.md](openvino.md).
* **vllm**: it decides itself which architectures it can load, and serves many more than these.
  "compared" marks those of which we compare answers.
* Embeddings, reranking and classification have pages of their own: [embeddings.md](embeddings.md)
  and [tasks.md](tasks.md).

| architecture | variants compared | transformers | openvino | vllm |
| --- | --- | --- | --- | --- |
"""


def models_page() -> str:
    """Return the text of docs/models.md."""
    variants: dict[str, list[str]] = defaultdict(list)
    for name, (config_class, _) in ARCHITECTURES.items():
        model_type = getattr(transformers, config_class).model_type
        variants[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]].append(name)
    rows = (_row(architecture, names) for architecture, names in sorted(variants.items()))
    gguf = DECLARATION.reads_gguf
    assert gguf is not None
    page = _PAGE.format(gguf=_listed(gguf.architectures), types=_listed(gguf.types))
    return page + "\n".join(rows) + "\n"


def _row(architecture: str, names: list[str]) -> str:
    openvino = "yes" if architecture in DECLARATION.architectures else ""
    vllm = "compared" if any(name in VLLM for name in names) else ""
    return f"| `{architecture}` | {_listed(names)} | compared | {openvino} | {vllm} |"


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(models_page(), end="")
