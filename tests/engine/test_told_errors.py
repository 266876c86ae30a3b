"""Errors of one process that another one raises."""

from __future__ import annotations

import pytest

from lmi_handlers.core import errors
from lmi_handlers.core.errors import (
    InvalidRequest,
    LMIError,
    QueueFull,
    RefusedByCode,
    RequestFailed,
    TextDeadline,
    UnsupportedFeature,
    error_of,
    told,
)
from lmi_handlers.custom_code.messages import failed, failure_of

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LMIError)]
HERE_ONLY = {TextDeadline, RefusedByCode}
"""Errors with more than a message, which no process tells another in this way."""


class OfAnotherDistribution(UnsupportedFeature):
    """A backend of another distribution may raise its own classes."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in HERE_ONLY])
def test_class_message_and_field_arrive(kind: type[LMIError]) -> None:
    error = kind("too large", field="top_k") if issubclass(kind, InvalidRequest) else kind("too large")
    arrived = error_of(*told(error))
    assert (type(arrived), vars(arrived), str(arrived)) == (kind, vars(error), str(error))


@pytest.mark.parametrize("kind", [InvalidRequest, QueueFull])
def test_the_code_of_a_cause_arrives(kind: type[LMIError]) -> None:
    for arrived in (
        error_of(*told(kind("too large", code="a_cause"))),
        failure_of(failed(0, kind("x", code="a_cause"))),
    ):
        assert isinstance(arrived, kind)
        assert arrived.code == "a_cause"
    assert error_of(*told(kind("too large"))).code == kind.code


def test_an_error_of_another_distribution_arrives_as_ours() -> None:
    arrived = error_of(*told(OfAnotherDistribution("not here", field="top_k")))
    assert (type(arrived), str(arrived)) == (UnsupportedFeature, "top_k: not here")


@pytest.mark.parametrize("name", ["contextlib", "Mapping", "entry_of", "T", "Exception", "", "__name__"])
def test_what_is_no_name_of_an_error_fails_the_request(name: str) -> None:
    """A model's own code can write anything to its connection."""
    arrived = error_of(name, "told so")
    assert (type(arrived), str(arrived)) == (RequestFailed, "told so")


def test_a_request_of_the_pool_ends_with_its_error() -> None:
    failure = failure_of(failed(0, QueueFull("all places are taken")))
    assert (type(failure), str(failure)) == (QueueFull, "all places are taken")
    failure = failure_of(failed(0, InvalidRequest("too large", field="top_k")))
    assert (type(failure), str(failure)) == (InvalidRequest, "top_k: too large")
