"""The reference page of what each backend supports: `python -m backends.features > docs/backends.md`."""

from __future__ import annotations

import textwrap

from backends import BACKENDS, declaration
from lmi_handlers.core.sampling_params import SamplingParams

OF_THE_TEXT_LAYER = ("n", "stop", "include_stop_str_in_output", "skip_special_tokens")
"""Fields of `SamplingParams` that the server handles itself, for every backend."""

OF_REQUESTS = ("adapters", "priority", "cache_salt", "continuation")
"""Features of a request outside `SamplingParams`."""


_PAGE = """\
# Backend features

Generated from `backends/` by `python -m backends.features > docs/backends.md`.

Fields have vLLM's names; [lmi.md](lmi.md) lists LMI's names for them. A request for something that
the backend does not support gets a 4xx that names the field and the backend. Nothing is silently
ignored. `echo` has no model: it accepts every field marked "yes", but only the token limits, stop
ids, log probabilities and `thinking_token_budget` affect its answers.

| field |"""


def features_page() -> str:
    """Return the text of docs/backends.md."""
    backends = [declaration(name) for name in BACKENDS]
    tables = {backend.name: backend.unsupported for backend in backends}
    lines = [f"{_PAGE} {' | '.join(tables)} |", f"| --- |{' --- |' * len(tables)}"]
    for field in (*SamplingParams.__struct_fields__, *OF_REQUESTS):
        cells = ["no" if field in table else "yes" for table in tables.values()]
        lines.append(f"| `{field}` | {' | '.join(cells)} |")
    lines += [
        "",
        f"The server itself provides {_listed(OF_THE_TEXT_LAYER)}",
        "and beam search, for every backend.",
        "",
        "## Reasons",
        "",
    ]
    lines += [_item(f"{name}, `{field}`: {why}.") for name, table in tables.items() for field, why in table.items()]
    lines += ["", "## Depending on the configuration", ""]
    lines += [
        _item(f"{item.name}, `{field}`: {when}.") for item in backends for field, when in item.conditional.items()
    ]
    for backend in backends:
        if backend.untested:
            lines += [
                "",
                f"## Not tested without a GPU: {backend.name}",
                "",
                *(_item(item) for item in backend.untested),
            ]
    return "\n".join([*lines, ""])


def _item(text: str) -> str:
    return textwrap.fill(f"* {text}", 100, subsequent_indent="  ", break_on_hyphens=False)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(features_page(), end="")
