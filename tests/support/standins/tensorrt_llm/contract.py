"""Classes made from the published interface: argument names, types, defaults."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

CONTRACT: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[3] / "data" / "tensorrt_llm-1.2.json").read_text(encoding="utf-8")
)

TYPES: dict[str, type] = {
    "bool": bool,
    "dict": dict,
    "float": float,
    "int": int,
    "object": object,
    "str": str,
    "Path": Path,
    "Tensor": torch.Tensor,
}
"""The types that are known by name. No value matches any other type."""


class Misuse(AssertionError):
    """A use that the library's documentation forbids, even if the library may not detect it."""


class ValidationError(ValueError):
    """Like pydantic's: one line per error."""


def accepts(annotation: str, value: object) -> bool:
    """Whether `value` has a type such as "Optional[List[int]] (None -> 2048)". The text in round brackets is a remark."""
    tree = _parse(annotation)
    return value is None if tree is None else _accepts(tree, value)


@functools.cache
def _parse(annotation: str) -> ast.expr | None:
    try:
        return ast.parse(annotation.split(" (")[0], mode="eval").body
    except SyntaxError:  # a list of names in prose
        return None


def _accepts(node: ast.expr, value: object) -> bool:
    match node:
        case ast.BinOp(left=left, right=right):
            return _accepts(left, value) or _accepts(right, value)
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            match name:
                case "Optional":
                    return value is None or _accepts(items[0], value)
                case "Union":
                    return any(_accepts(item, value) for item in items)
                case "Literal":
                    return value in [ast.literal_eval(item) for item in items]
                case "List":
                    return isinstance(value, list) and all(_accepts(items[0], item) for item in value)
                case "Dict":
                    return isinstance(value, dict) and all(
                        _accepts(items[0], key) and _accepts(items[1], item) for key, item in value.items()
                    )
        case ast.Name(id=name) | ast.Attribute(attr=name):
            if isinstance(value, bool):
                return name in ("bool", "object")
            if name == "float" and isinstance(value, int):
                return True
            return name in TYPES and isinstance(value, TYPES[name])
    return False


def _default(text: object) -> Callable[[], Any]:
    """Return a function that returns a new copy of the default that the contract writes as `text`."""
    if isinstance(text, str):
        if text.endswith("()"):
            return TYPES.get(text[:-2], lambda: None)
        if text in ("[]", "{}"):
            return list if text == "[]" else dict
    return lambda: text


def dataclass_of(name: str, *, keywords: bool = True, counters: tuple[str, ...] = (), **namespace: Any) -> Any:
    """Make the dataclass that the contract describes under `name`, with the methods in `namespace`.

    `counters` are further attributes, of no concern to callers, that begin at 0.
    """
    spec = CONTRACT[name]
    fields: list[tuple[str, Any, Any]] = []
    for field, about in spec["fields" if "fields" in spec else "fields_in_order"].items():
        if about["default"] == "<required>":
            fields.append((field, about["type"], dataclasses.field()))
        else:
            fields.append((field, about["type"], dataclasses.field(default_factory=_default(about["default"]))))
    for field, text in spec.get("non_init_fields", {}).items():
        fields.append((field, text, dataclasses.field(init=False, default=None)))
    fields += [(counter, "int", dataclasses.field(init=False, repr=False, default=0)) for counter in counters]
    made = dataclasses.make_dataclass(name, fields, kw_only=keywords, slots=True, namespace=namespace)
    TYPES[name] = made
    return made


def check_types(instance: Any) -> None:
    """Raise `TypeError` if a field's value does not have the type in the contract."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.init and not accepts(str(field.type), value):
            raise TypeError(f"{type(instance).__name__}.{field.name} must be {field.type}, got {value!r:.80}")


class StrictModel:
    """Like a pydantic model that forbids extra arguments."""

    FIELDS: ClassVar[dict[str, dict[str, Any]]]

    def __init__(self, **arguments: Any) -> None:
        mistakes = [f"{name}\n  Extra inputs are not permitted" for name in arguments if name not in self.FIELDS]
        for name, about in self.FIELDS.items():
            if name not in arguments:
                if about["default"] == "<required>":
                    mistakes.append(f"{name}\n  Field required")
                setattr(self, name, _default(about["default"])())
            elif accepts(about["type"], arguments[name]):
                setattr(self, name, arguments[name])
            else:
                mistakes.append(f"{name}\n  Input should be {about['type']}, got {arguments[name]!r:.80}")
        if mistakes:
            count = f"{len(mistakes)} validation error{'s' if len(mistakes) > 1 else ''}"
            raise ValidationError(f"{count} for {type(self).__name__}\n" + "\n".join(mistakes))
        self.validate()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def validate(self) -> None:
        """Raise `ValueError` for rules besides types."""


def model_of(name: str, *parents: str, validate: Callable[[Any], None] | None = None) -> Any:
    """Make the strict model that the contract describes under `name`, with the fields of `parents` before its own."""
    fields: dict[str, Any] = {}
    for source in (*parents, name):
        fields |= CONTRACT[source]["fields"]
    namespace: dict[str, Any] = {"FIELDS": fields}
    if validate is not None:
        namespace["validate"] = validate
    made = type(name, (StrictModel,), namespace)
    TYPES[name] = made
    return made


def enum_of(name: str) -> Any:
    """Make the enumeration of words that the contract lists under `name`."""
    functional: Any = enum.Enum
    made = functional(name, {member: member for member in CONTRACT["enums"][name]}, type=str)
    TYPES[name] = made
    return made
