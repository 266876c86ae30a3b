"""Tightens the bounds of the APIs' fields by the limits on what one request may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmi_handlers.apis.documentation import Bounds
from lmi_handlers.config.budget import Budget


def narrowed(bounds: Bounds, budget: Budget) -> Bounds:
    """Return `bounds`, tightened by the budget of a request."""
    added: dict[str, Mapping[str, Any]] = {
        **budget.keywords(),
        **{name: {"maximum": budget.max_sequences} for name in ("n", "best_of", "num_beams")},
        "inputs": {"maxItems": budget.max_sequences},
    }
    return {name: _both(bounds.get(name, {}), added.get(name, {})) for name in {**bounds, **added}}


def _both(keywords: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of keywords. The stricter bound wins."""
    joined = {**keywords, **others}
    for name in keywords.keys() & others.keys():
        if name == "items":
            joined[name] = _both(keywords[name], others[name])
        elif name.startswith("min"):
            joined[name] = max(keywords[name], others[name])
        elif name.startswith("max"):
            joined[name] = min(keywords[name], others[name])
    return joined
