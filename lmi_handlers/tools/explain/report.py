"""The server's document for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_MOST_TEXT = 2000


def report(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `lmi explain`. `found` is the answer of `POST /explain`."""
    field = found.get("chosen_by_field")
    yield f"Body      {found['dialect']}" + (f", because it has {field!r}" if field else "")
    yield f"Model     {found['model']}, on {found['engine']} ({found['device']})"
    for prompt in found["prompts"]:
        text = json.dumps(prompt["text"][:_MOST_TEXT], ensure_ascii=False)
        yield f"Prompt    {prompt['num_tokens']} tokens{_besides(prompt)}: {text}"
    limits = found["limits"]
    if found["task"] == "generate":
        yield f"Answer    at most {limits['max_tokens']} tokens, within {limits['predict_timeout']:g} s{_cut(limits)}"
    else:
        yield f"Answer    task {found['task']}, within {limits['predict_timeout']:g} s"
    form = found["format"]
    yield f"Format    {form['content_type']}, {'streamed' if form['streams'] else 'complete'} ({form['formatter']})"
    if continued := found.get("continued_tokens"):
        yield f"After     {continued} tokens that were generated before"
    if ignored := found.get("ignored_fields"):
        yield f"Ignored   {', '.join(ignored)}"
    values = found["sampling_params"]
    if values:
        yield ""
        width = max(map(len, values))
        for name, each in values.items():
            value = json.dumps(each["value"], ensure_ascii=False)
            yield f"  {name:{width}}  {value:12}  {_origin(name, each)}"


def _besides(prompt: Mapping[str, Any]) -> str:
    media = (f" and {prompt[kind]} {kind}" for kind in ("images", "sounds") if prompt.get(kind))
    adapter = prompt.get("adapter")
    return "".join(media) + (f" for the adapter {adapter}" if adapter else "")


def _cut(limits: Mapping[str, Any]) -> str:
    return f", cut after {limits['cut_after']:g} s by {limits['cut_by']}" if "cut_by" in limits else ""


def _origin(name: str, each: Mapping[str, Any]) -> str:
    """Return the origin of a value. "API": derived from other fields by the API's rules, or the API's default."""
    field = each.get("field", name)
    return each["origin"] if field == name else f"{each['origin']} ({field})"
