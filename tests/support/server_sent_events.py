"""Parses streams of server-sent events."""

from __future__ import annotations

import json
import re
from typing import Any


def event_data(stream: str) -> list[str]:
    """The data of each event. Fails unless each event is at most a name, one line of data and an empty line."""
    *events, rest = stream.split("\n\n")
    assert rest == ""
    events = [re.sub("^event: .+\n", "", event) for event in events]
    assert all(event.startswith("data:") and "\n" not in event for event in events)
    return [event.removeprefix("data:").removeprefix(" ") for event in events]


def json_events(stream: str) -> list[Any]:
    """The JSON value of each event."""
    return [json.loads(data) for data in event_data(stream)]


def json_chunks(stream: str) -> list[Any]:
    """The JSON value of each event before `[DONE]`, with which OpenAI's streams end."""
    *chunks, done = event_data(stream)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]
