"""Checks that one OpenAPI document is compatible with another: clients of the other must work with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]


class Contract:
    """Compares `ours` with `theirs`. Each yielded difference names its location and what is incompatible."""

    def __init__(self, ours: Schema, theirs: Schema) -> None:
        self._ours = ours
        self._theirs = theirs

    def differences(self) -> Iterator[str]:
        """Compare each path, method, status, content type and schema of theirs."""
        for path, methods in self._theirs["paths"].items():
            for method, operation in methods.items():
                place = f"{method.upper()} {path}"
                own = self._ours["paths"].get(path, {}).get(method)
                if own is None:
                    yield f"{place}: missing"
                else:
                    yield from self._operation(place, own, operation)
        requested, answered = self._used("requestBody"), self._used("responses")
        for name, schema in self._theirs["components"]["schemas"].items():
            own = self._ours["components"]["schemas"].get(name)
            if own is None:
                yield f"{name}: missing"
                continue
            if name in requested:
                yield from self.accepts(own, schema, name)
            if name in answered or name not in requested:
                yield from self.provides(own, schema, name)

    def _operation(self, place: str, ours: Schema, theirs: Schema) -> Iterator[str]:
        for key in ("operationId", "tags"):
            if ours[key] != theirs[key]:
                yield f"{place}: {key} is {ours[key]}"
        for content_type, content in theirs.get("requestBody", {}).get("content", {}).items():
            own = ours["requestBody"]["content"].get(content_type)
            if own is None:
                yield f"{place} takes {content_type}: missing"
            else:
                yield from self.accepts(own["schema"], content["schema"], f"{place} takes")
        for status, response in theirs["responses"].items():
            own = ours["responses"].get(status)
            if own is None:
                yield f"{place} {status}: missing"
                continue
            for content_type, content in response.get("content", {}).items():
                answer = own.get("content", {}).get(content_type)
                if answer is None:
                    yield f"{place} {status} {content_type}: missing"
                else:
                    yield from self.provides(answer["schema"], content["schema"], f"{place} {status} {content_type}")

    def accepts(self, ours: Schema, theirs: Schema, place: str) -> Iterator[str]:
        """Requests: ours must accept every value that theirs accepts. Schemas with the same name are compared once."""
        if theirs.get("$ref", "") == ours.get("$ref"):
            return
        own = alternatives(ours, self._ours)
        for wanted in alternatives(theirs, self._theirs):
            yield from _best([list(self._accepts(mine, wanted, place)) for mine in own])

    def _accepts(self, ours: Schema, theirs: Schema, place: str) -> Iterator[str]:
        if not _covers(ours.get("type"), theirs.get("type")):
            yield f"{place}: takes no {theirs.get('type', 'other value')}"
            return
        if "enum" in ours and not set(theirs.get("enum", ["anything"])) <= set(ours["enum"]):
            yield f"{place}: takes no {theirs.get('enum', 'other value')}"
        own = ours.get("properties", {})
        for name, schema in theirs.get("properties", {}).items():
            if name in own:
                yield from self.accepts(own[name], schema, f"{place}.{name}")
            else:
                yield f"{place}.{name}: missing"
        for name in sorted(set(ours.get("required", ())) - set(theirs.get("required", ()))):
            yield f"{place}.{name}: required"
        if "items" in ours and "items" in theirs:
            yield from self.accepts(ours["items"], theirs["items"], f"{place}[]")

    def provides(self, ours: Schema, theirs: Schema, place: str) -> Iterator[str]:
        """Responses: theirs must allow every value that ours returns. Schemas with the same name are compared once."""
        if theirs.get("$ref", "") == ours.get("$ref"):
            return
        wanted = alternatives(theirs, self._theirs)
        for mine in alternatives(ours, self._ours):
            yield from _best([list(self._provides(mine, one, place)) for one in wanted])

    def _provides(self, ours: Schema, theirs: Schema, place: str) -> Iterator[str]:
        if not _covers(theirs.get("type"), ours.get("type")):
            yield f"{place}: may be {ours.get('type', 'anything')}"
            return
        if "enum" in theirs and not set(ours.get("enum", ["anything"])) <= set(theirs["enum"]):
            yield f"{place}: may be {ours.get('enum', 'anything')}"
        own = ours.get("properties", {})
        for name, schema in theirs.get("properties", {}).items():
            if name in own:
                yield from self.provides(own[name], schema, f"{place}.{name}")
            else:
                yield f"{place}.{name}: missing"
        for name in sorted(set(theirs.get("required", ())) & set(own) - set(ours.get("required", ()))):
            yield f"{place}.{name}: may be missing"
        if "items" in theirs:
            yield from self.provides(ours.get("items", {}), theirs["items"], f"{place}[]")

    def _used(self, part: str) -> set[str]:
        """The names of their components that these parts of the operations refer to, directly or indirectly."""
        operations = [operation for methods in self._theirs["paths"].values() for operation in methods.values()]
        names: set[str] = set()
        todo = set(_references([operation.get(part) for operation in operations]))
        while todo:
            name = todo.pop()
            names.add(name)
            todo |= set(_references(self._theirs["components"]["schemas"][name])) - names
        return names


def alternatives(schema: Schema, document: Schema) -> list[Schema]:
    """The alternative schemas of a value, each with one type or none, with references resolved."""
    if "$ref" in schema:
        found = alternatives(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    elif "anyOf" in schema or "oneOf" in schema:
        parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        found = [one for part in parts for one in alternatives(part, document)]
    elif "allOf" in schema:
        found = [{}]
        for part in schema["allOf"]:
            found = [_merged(one, other) for one in found for other in alternatives(part, document)]
    elif "enum" in schema and "type" not in schema:
        found = [{"type": "string", **schema}]
    else:
        found = [schema]
    return [*found, {"type": "null"}] if schema.get("nullable") else found


def _merged(one: Schema, other: Schema) -> Schema:
    properties = one.get("properties", {}) | other.get("properties", {})
    required = [*one.get("required", ()), *other.get("required", ())]
    return {**one, **other, "properties": properties, "required": required}


def _covers(wide: str | None, narrow: str | None) -> bool:
    """Whether every value of one type is also of the other type. None means any type."""
    return wide is None or wide == narrow or (wide, narrow) == ("number", "integer")


def _best(candidates: list[list[str]]) -> list[str]:
    """The differences of the alternative that has the fewest."""
    return min(candidates, key=len)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item.rpartition("/")[2]
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
