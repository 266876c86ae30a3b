"""Errors of vLLM's routes for adapters. The others answer like all management routes."""

from __future__ import annotations

from formatters.openai.errors import error_document
from formatters.openai.schemas import OpenAIError
from lmi_handlers.apis.base import Reply
from lmi_handlers.apis.management import ManagementDialect, status_of
from lmi_handlers.core.errors import AdapterExists, LMIError


class VllmAdapterDialect(ManagementDialect):
    """Renders errors like vLLM, whose status for an adapter that exists is 400."""

    error_type = OpenAIError

    def error(self, error: LMIError) -> Reply:
        """Render OpenAI's error object."""
        return Reply(400 if isinstance(error, AdapterExists) else status_of(error), error_document(error))
