"""Reads requests: LMI's bodies `{"inputs": .., "parameters": {..}}`, CSV, plain text, images and audio."""

from __future__ import annotations

import csv
from typing import Any, NamedTuple

import msgspec

from lmi_handlers.core.conversion import convert
from lmi_handlers.core.errors import InvalidJson, InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from lmi_handlers.core.json_shape import json_shape
from lmi_handlers.custom_code.encode_decode import named_rows
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.tasks.task import MAX_ITEMS, Parameters, Task

_JSON = "application/json"
_BYTES = "application/octet-stream"
FORM = "multipart/form-data"
"""The parts `inputs`, a file, and `parameters`, JSON: how our APIs ask a task that reads files."""

_MAX_VALUES = 10_000
"""Values in a JSON body. `MAX_ITEMS` texts with their parameters need a fraction of it."""

MAX_COMMAS = 1_000_000
"""Commas in a CSV body, which may all be in its texts: these have no more characters together."""

_FIELDS = ("inputs", "parameters", "options")
"""Hugging Face's clients send `options`, which their own API reads."""


class Body(NamedTuple):
    """A valid request. `single` is true if `inputs` is one item and not a list."""

    items: list[Any]
    single: bool
    parameters: Parameters


def read_body(request: Input, task: Task) -> Body:
    """Return what the request asks for. Raises `InvalidRequest` with the field."""
    body = _decode(request, reads_files=task.reads_files)
    if isinstance(body, dict) and "inputs" in body:
        if unknown := sorted(body.keys() - {*_FIELDS}):
            raise InvalidRequest(f"is not a field of the body; allowed: {', '.join(_FIELDS)}", field=unknown[0][:100])
        inputs = body["inputs"]
    elif isinstance(body, dict):  # as in LMI, the rest of the body is the input
        inputs = {name: value for name, value in body.items() if name not in _FIELDS}
    else:
        inputs = body
    given = body.get("parameters") if isinstance(body, dict) else None
    parameters = _parameters({} if given is None else given, task.parameters)
    if isinstance(inputs, list):  # counted before any is decoded
        if not inputs:
            raise InvalidRequest("must not be empty", field="inputs")
        if len(inputs) > MAX_ITEMS:
            raise InvalidRequest(f"must have at most {MAX_ITEMS} items, got {len(inputs)}", field="inputs")
    items, single = task.items(inputs)
    task.check(items, parameters)
    return Body(items, single, parameters)


def _decode(request: Input, *, reads_files: bool) -> object:
    data = request.get_as_bytes() or b""
    is_file = reads_files and data[:1] not in (b"{", b"[", b'"')
    kind = request.get_property("content-type") or (_BYTES if is_file else _JSON)
    if _JSON in kind:
        return _decode_json(data)
    if kind.startswith(("image/", "audio/")) or kind == _BYTES:
        return {"inputs": data}
    if reads_files and kind == FORM:
        return {name: read(request, name) for name, read in _PARTS.items() if request.contains_key(name)}
    try:
        if kind == "text/plain":
            return {"inputs": [request.get_as_string()]}
        if kind == "text/csv":
            return _decode_csv(request.get_as_string())
    except (ValueError, csv.Error) as error:
        raise InvalidRequest(f"the {kind} body cannot be read: {error}") from error
    raise UnsupportedMediaType(
        f"content type {kind[:100]} is not supported: use {_JSON}, text/csv, text/plain or the file's"
    )


def _part(request: Input, name: str) -> object:
    return request.get_as_bytes(name)


def _json_part(request: Input, name: str) -> object:
    return _decode_json(request.get_as_bytes(name))


_PARTS = {"inputs": _part, "parameters": _json_part}


def _decode_json(data: bytes) -> object:
    if json_shape(data, enough=_MAX_VALUES).values > _MAX_VALUES:
        raise PayloadTooLarge(f"the body has more than {_MAX_VALUES} JSON values", code="too_many_values")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidJson("the body is not valid JSON: it is nested too deeply") from error


def _decode_csv(text: str) -> dict[str, Any]:
    """Decode no more than a request may have: each line would become an object, and each comma a field of it."""
    if text.count(",") > MAX_COMMAS:
        raise PayloadTooLarge(f"the body has more than {MAX_COMMAS} commas", code="too_many_values")
    body = named_rows(text, MAX_ITEMS + 1)
    if len(body["inputs"]) > MAX_ITEMS:
        raise InvalidRequest(f"must have at most {MAX_ITEMS} items", field="inputs")
    return body


def _parameters(given: object, kind: type[Parameters]) -> Parameters:
    if isinstance(given, dict) and (unknown := [name for name in given if name not in kind.__struct_fields__]):
        known = ", ".join(kind.__struct_fields__) or "none"
        raise InvalidRequest(f"is not a parameter of this task; known: {known}", field=f"parameters.{unknown[0][:100]}")
    return convert(given, kind, prefix="parameters")
