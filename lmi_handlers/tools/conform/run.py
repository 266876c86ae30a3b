"""`lmi conform`: sends the vectors of the APIs one after the other, and collects what is found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lmi_handlers.tools.client.errors import CallRefused
from lmi_handlers.tools.client.server import ServerUrl, Unreachable, authorization
from lmi_handlers.tools.conform.exchange import Received, exchange
from lmi_handlers.tools.conform.judge import NOT_SPOKEN, Finding, Verdict, judge
from lmi_handlers.tools.conform.vectors import Vector, api, body_for

_DEFAULT_MODEL = "model"

_MOST_LATE = 3
"""After this many successive requests without an answer, the others are not sent: there are more than a hundred."""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a vector. `status` is None if there was no answer; `seconds` is how long the answer took."""

    case: str
    verdict: Verdict
    difference: str | None
    status: int | None
    seconds: float


class FeatureResult(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of a feature. It is only "not spoken" if none of them is.

    `accepted` is true if the user has said that this difference is known.
    """

    feature: str
    verdict: Verdict
    accepted: bool
    cases: Sequence[CaseResult]

    @property
    def conforming(self) -> int:
        """The number of vectors that were answered as the reference does."""
        return sum(case.verdict == "conforms" for case in self.cases)

    @property
    def first(self) -> CaseResult | None:
        """The first vector with the verdict, or else the first that fails. None if all were answered as they should be."""
        failed = [case for case in self.cases if case.verdict != "conforms"]
        return next((case for case in failed if case.verdict == self.verdict), failed[0] if failed else None)


class ApiResult(msgspec.Struct, frozen=True, kw_only=True):
    """The features of an API."""

    api: str
    reference: str
    features: Sequence[FeatureResult]

    @property
    def conforms(self) -> bool:
        """Every feature does, or its difference is accepted."""
        return all(feature.verdict == "conforms" or feature.accepted for feature in self.features)


class AskedServer(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and how to ask it. `seconds` limits each answer. `key_header` is that of the API for the key, if any."""

    server: ServerUrl
    api_key: str | None
    model: str
    seconds: float
    key_header: str | None = None

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Received:
        """Send a request with the key. Raises `CallRefused`, and `ConfigError` for a key that cannot be sent."""
        key = authorization(self.api_key, self.key_header)
        return exchange(self.server, method, path, body, {**headers, **key}, self.seconds)


def model_of(target: AskedServer) -> str:
    """Return the name of the first model that the server lists, or a name that stands for any. Raises `Unreachable`."""
    try:
        reply = target.send("GET", "/v1/models", None, {})
        listed = msgspec.json.decode(reply.body, type=_Models)
    except Unreachable:
        raise
    except (CallRefused, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _DEFAULT_MODEL
    return listed.data[0].id if listed.data else _DEFAULT_MODEL


def results(target: AskedServer, apis: Sequence[str], accepted: frozenset[str]) -> Iterator[ApiResult]:
    """Send the vectors of the APIs. Yields the results of an API when all its vectors have been sent.

    `accepted` are the features whose differences are known, as "api: feature".
    """
    waited = 0.0
    for name in apis:
        target = msgspec.structs.replace(target, key_header=api(name).key_header)
        asked: list[tuple[Vector, CaseResult]] = []
        for vector in api(name).vectors:
            started = time.monotonic()
            case = _result(target, vector) if waited < _MOST_LATE * target.seconds else _not_sent(vector)
            waited = waited + time.monotonic() - started if case.status is None else 0.0
            asked.append((vector, case))
        found: dict[str, list[CaseResult]] = {}
        for vector, case in _without_routes(asked):
            found.setdefault(vector.feature, []).append(case)
        features = [
            FeatureResult(
                feature=feature,
                verdict=_together([case.verdict for case in cases]),
                accepted=f"{name}: {feature}" in accepted,
                cases=cases,
            )
            for feature, cases in found.items()
        ]
        yield ApiResult(api=name, reference=api(name).reference, features=features)


def _without_routes(cases: Sequence[tuple[Vector, CaseResult]]) -> Iterator[tuple[Vector, CaseResult]]:
    """Yield the vectors of an API. One whose reference is itself a 404 is not spoken if its path answers nothing else."""
    routes = {vector.path for vector, case in cases if case.status not in NOT_SPOKEN}
    for vector, case in cases:
        if case.verdict == "differs" and vector.path not in routes:
            yield vector, msgspec.structs.replace(case, verdict="not spoken")
        else:
            yield vector, case


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "error" if "error" in verdicts else "differs"


def _result(target: AskedServer, vector: Vector) -> CaseResult:
    """Send a vector. Of several bodies, the first that is answered as by the reference counts, else the first one."""
    tried: list[CaseResult] = []
    for body in vector.bodies:
        tried.append(_sent(target, vector, body))
        if tried[-1].verdict == "conforms":
            return tried[-1]
    return tried[0]


def _not_sent(vector: Vector) -> CaseResult:
    cause = "not sent, because the server did not answer the requests before it"
    return CaseResult(case=vector.case, verdict="error", difference=cause, status=None, seconds=0.0)


def _sent(target: AskedServer, vector: Vector, body: bytes | None) -> CaseResult:
    started, reply = time.monotonic(), None
    finding = Finding("error")
    try:
        data = None if body is None else body_for(body, target.model)
        reply = target.send(vector.method, vector.path, data, vector.headers)
        finding = judge(vector.answer, reply)
    except CallRefused as error:
        finding = Finding("error", str(error))
    return CaseResult(
        case=vector.case,
        verdict=finding.verdict,
        difference=finding.difference,
        status=None if reply is None else reply.status,
        seconds=round(time.monotonic() - started, 3),
    )


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]
