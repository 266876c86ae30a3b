"""When a request ends although its answer is not complete."""

from __future__ import annotations

import pytest

from lmi_handlers.core.deadline import Cutoff, Deadline
from lmi_handlers.core.errors import ClientDisconnected, DeadlineExceeded, TextDeadline

CUTOFF = Cutoff(5.0, "stream_deadline")


@pytest.mark.parametrize(
    ("deadline", "now", "expected"),
    [
        (Deadline(10.0), 9.9, None),
        (Deadline(10.0), 10.0, DeadlineExceeded),
        (Deadline(10.0, cutoff=CUTOFF), 4.9, None),
        (Deadline(10.0, cutoff=CUTOFF), 5.0, TextDeadline),
        (Deadline(10.0, cutoff=CUTOFF), 11.0, TextDeadline),
        (Deadline(10.0, lambda: False), 0.0, ClientDisconnected),
        (Deadline(10.0, lambda: False, CUTOFF), 11.0, ClientDisconnected),
    ],
    ids=["early", "late", "before the cutoff", "at the cutoff", "after both", "gone", "gone and late"],
)
def test_what_ends_a_request(deadline: Deadline, now: float, expected: type[Exception] | None) -> None:
    error = deadline.reached(now)
    assert error is None if expected is None else type(error) is expected


def test_the_option_that_cut_an_answer_is_named() -> None:
    error = Deadline(10.0, cutoff=CUTOFF).reached(6.0)
    assert isinstance(error, TextDeadline)
    assert error.option == "stream_deadline"


def test_check_raises_what_ends_the_request() -> None:
    Deadline(10.0).check(9.0)
    with pytest.raises(DeadlineExceeded):
        Deadline(10.0).check(10.0)
