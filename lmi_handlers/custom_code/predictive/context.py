"""The `context` argument that functions of SageMaker's scripts may take after their own.

Its methods are those of Multi Model Server's context, for a batch of one request. Source: `mms.context`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestProcessor:
    """One request's headers, and the status and headers of its answer."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.status = 200
        self.phrase: str | None = None
        self._headers = headers
        self._response_headers: dict[str, str] = {}

    def get_request_property(self, key: str) -> str | None:
        """Return a header of the request, whatever the case of its name."""
        return self._headers.get(key)

    def get_request_properties(self) -> Mapping[str, str]:
        """Return all headers of the request."""
        return self._headers

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Set the status of the answer."""
        self.status, self.phrase = code, reason_phrase

    def get_response_status_code(self) -> int:
        """Return the status of the answer."""
        return self.status

    def get_response_status_phrase(self) -> str | None:
        """Return the phrase that came with the status."""
        return self.phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Set a header of the answer."""
        self._response_headers[str(key)] = str(value)

    def get_response_headers(self) -> dict[str, str]:
        """Return the headers of the answer."""
        return self._response_headers

    def get_response_header(self, key: str) -> str | None:
        """Return a header of the answer."""
        return self._response_headers.get(key)


class Context:
    """Facts about the model and, while a request is answered, about that request."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Make the context of a process. `properties` are those of the first call."""
        device = int(properties["device_id"])
        self.model_name = properties.get("model_name")
        self.manifest: dict[str, Any] = {}
        self.metrics: Any = None
        self.system_properties = {
            "model_dir": properties["model_dir"],
            "gpu_id": None if device < 0 else device,
            "batch_size": 1,
            "server_name": "lmi-handlers",
            "server_version": None,
        }
        self.request_ids: dict[int, str | None] = {}
        self.request_processor: list[RequestProcessor] = []

    def begin(self, headers: Mapping[str, str]) -> RequestProcessor:
        """Let the context describe the request with these headers."""
        processor = RequestProcessor(headers)
        self.request_processor = [processor]
        self.request_ids = {0: headers.get("x-request-id")}
        return processor

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the id of the request."""
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> str | None:
        """Return a header of the request, whatever the case of its name."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> Mapping[str, str]:
        """Return all headers of the request."""
        return self.request_processor[idx].get_request_properties()

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of the answer, unless the functions return one."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Return the content type that was set."""
        return self.get_response_headers(idx).get("content-type")

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of the answer."""
        self.request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of the answer."""
        self.set_response_status(code, phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Return the status of the answer and its phrase."""
        return self.request_processor[idx].status, self.request_processor[idx].phrase

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Return the headers of the answer."""
        return self.request_processor[idx].get_response_headers()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of the answer."""
        self.request_processor[idx].add_response_property(key, value)
