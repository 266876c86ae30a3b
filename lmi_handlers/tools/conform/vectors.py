"""The vectors: requests, and the answers of the servers whose APIs these are. They are files in `vectors/`.

A file `<api>.json` lists the requests of an API. Recorded answers stand beside it as they were recorded, and are named
by `{"from": [file, key, ...]}`, or `{"from": .., "with": {..}}` if some fields differ. The project's tests read the same
files.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec

from lmi_handlers.tools.client.answer import STREAMS, media_type
from lmi_handlers.tools.conform.records import AnswerRecords
from lmi_handlers.tools.conform.shape import Rules

FILES = resources.files("lmi_handlers.tools.conform") / "vectors"

_MODEL = "{model}"


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The reference's answer. `status` is a number, or "4xx" for any of these.

    `content_type` and `records` are None if the reference has none that a client could rely on. Records named in
    `optional_records` need not come; `seconds` is how long the answer may take.
    """

    status: int | str
    content_type: str | None = None
    headers: Sequence[str] = ()
    records: AnswerRecords | None = None
    rules: Rules = Rules()
    optional_records: frozenset[str] = frozenset()
    seconds: float | None = None

    @property
    def streams(self) -> bool:
        """The answer consists of several records."""
        return self.content_type is not None and media_type(self.content_type) in STREAMS


class Vector(msgspec.Struct, frozen=True, kw_only=True):
    """A request with the reference's answer. `case` tells it from other requests that test the same `feature`.

    With several `bodies`, one of them must be answered so.
    """

    feature: str
    case: str
    method: str
    path: str
    headers: Mapping[str, str]
    bodies: Sequence[bytes | None]
    answer: Reference


class ApiVectors(msgspec.Struct, frozen=True, kw_only=True):
    """An API: what is taken for its reference, its vectors, and the header for the key if that is the API's own."""

    reference: str
    vectors: Sequence[Vector]
    key_header: str | None = None


@functools.cache
def api(name: str) -> ApiVectors:
    """Return the vectors of one of `APIS`."""
    document = load(f"{name}.json")
    common = document.get("rules", {})
    vectors = [vector for entry in document["vectors"] for vector in _vectors(entry, common)]
    return ApiVectors(reference=document["reference"], vectors=vectors, key_header=document.get("key_header"))


def features(name: str) -> list[str]:
    """Return the features of one of `APIS`, in the order of its vectors."""
    return list(dict.fromkeys(vector.feature for vector in api(name).vectors))


@functools.cache
def load(file: str) -> Any:
    """Return the content of a file in `vectors/`: a document, or a text if it is not JSON."""
    text = FILES.joinpath(*file.split("/")).read_text(encoding="utf-8")
    return json.loads(text) if file.endswith(".json") else text


def body_for(body: bytes, model: str) -> bytes:
    """Return a body with the name of the model."""
    return body.replace(_MODEL.encode(), msgspec.json.encode(model)[1:-1])


def _vectors(entry: Mapping[str, Any], common: Mapping[str, Any]) -> Iterator[Vector]:
    rules = _rules(common, entry.get("rules", {}))
    if "recorded" in entry:
        yield from _recorded_by_lmi(entry, rules)
    elif "refused" in entry:
        yield from _refused_by_tgi(entry, rules)
    else:
        bodies = entry.get("bodies", [entry.get("body")])
        yield Vector(
            feature=entry["feature"],
            case=entry.get("case", ""),
            method=entry.get("method", "POST"),
            path=entry["path"],
            headers={"Content-Type": "application/json"} | entry.get("headers", {}),
            bodies=[_bytes(_resolved(body)) for body in bodies],
            answer=_reference(entry["answer"], rules),
        )


def _recorded_by_lmi(entry: Mapping[str, Any], rules: Rules) -> Iterator[Vector]:
    """Yield the vectors that were recorded from LMI, by name. They are sent to SageMaker's route, as it is the same."""
    recorded = {case["case"]: case for case in load("lmi/http-0.31.json") if case["formatter"] == "plain"}
    for name in entry["recorded"]:
        request, output = recorded[name]["input"]["request"], recorded[name]["output"]
        headers = dict(line.lower().split(": ", 1) for line in output["headers"])
        given = {"status": int(output["status_line"].split()[1]), "content_type": headers.get("content-type")}
        yield Vector(
            feature=entry["feature"],
            case=name,
            method=request["method"],
            path="/invocations",
            headers=request["headers"],
            bodies=[_bytes(request["body"])],
            answer=_reference(given | {"text": output["body"]}, rules),
        )


def _refused_by_tgi(entry: Mapping[str, Any], rules: Rules) -> Iterator[Vector]:
    """Yield the requests of a group that TGI refuses, unless that depends on how it was started."""
    for case in load("tgi/bad_requests.json"):
        if case["group"] != entry["refused"] or case["route"] not in entry["routes"] or case["id"] in entry["except"]:
            continue
        given = {"status": case["status"], "content_type": case["content_type"], "text": case["error_body"]}
        yield Vector(
            feature=entry["feature"],
            case=f"{case['id']} {case['body'][:60]}",
            method=case["method"],
            path=case["route"],
            headers={"Content-Type": "application/json"} | case.get("headers", {}),
            bodies=[case["body"].encode()],
            answer=_reference(given, rules),
        )


def _reference(given: Mapping[str, Any], rules: Rules) -> Reference:
    kind, records = given.get("content_type"), None
    if "text" in given:
        records = AnswerRecords.of(_bytes(_resolved(given["text"])) or b"", kind or "application/json")
    elif "records" in given:
        records = AnswerRecords(given["records"], given.get("done", False), given.get("named", False))
    elif "body" in given:
        records = AnswerRecords([_resolved(given["body"])])
    return Reference(
        status=given["status"],
        content_type=kind,
        headers=given.get("headers", ()),
        records=records,
        rules=rules,
        optional_records=frozenset(given.get("optional_records", ())),
        seconds=given.get("seconds"),
    )


def _rules(*given: Mapping[str, Any]) -> Rules:
    """Return the rules of a file and those of a vector together."""
    return Rules(
        open=any(rules.get("open", False) for rules in given),
        optional=frozenset(path for rules in given for path in rules.get("optional", ())),
        any=frozenset(path for rules in given for path in rules.get("any", ())),
        one_of={path: values for rules in given for path, values in rules.get("one_of", {}).items()},
    )


def _resolved(value: Any) -> Any:
    """Return what a value of a file stands for: itself, or a part of another file."""
    if not isinstance(value, Mapping) or "from" not in value:
        return value
    file, *keys = value["from"]
    found = functools.reduce(lambda part, key: part[key], keys, load(file))
    return found | value["with"] if "with" in value else found


def _bytes(value: Any) -> bytes | None:
    """Return a body: a text as it is, anything else as JSON."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()
