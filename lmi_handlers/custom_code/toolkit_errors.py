"""`sagemaker_inference.errors`: a script raises these to choose the status."""

from __future__ import annotations


class BaseInferenceToolkitError(Exception):
    """An error with a status and a message for the client."""

    def __init__(self, status_code: int, message: str, phrase: str) -> None:
        super().__init__(status_code, message, phrase)
        self.status_code = status_code
        self.message = message
        self.phrase = phrase


class GenericInferenceToolkitError(BaseInferenceToolkitError):
    """The same, with defaults."""

    def __init__(self, status_code: int, message: str | None = None, phrase: str | None = None) -> None:
        message = message or "Invalid Request"
        super().__init__(status_code, message, phrase or message)
