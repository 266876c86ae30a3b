"""Outputs of a request whose client does not read."""

from __future__ import annotations

import pytest

from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.engine.messages import SequenceOutput
from lmi_handlers.engine.unread_outputs import UnreadOutputs


@pytest.mark.parametrize("sequences", [1, 100, 1024])
def test_what_waits_is_limited_for_the_whole_request(sequences: int) -> None:
    unread = UnreadOutputs(sequences)
    steps = 300_000 // sequences
    for step in range(steps):
        for index in range(sequences):
            unread.put(SequenceOutput(1, index, TokenOutput(request_id="r", token_ids=[step]), 0.0))
    items = [item for item in unread.take() if isinstance(item, SequenceOutput)]
    assert len(items) <= 3 * max(4096, 4 * sequences) + sequences
    for index in (0, sequences - 1):
        tokens = [token for item in items if item.index == index for token in item.output.token_ids]
        assert tokens == list(range(steps))
