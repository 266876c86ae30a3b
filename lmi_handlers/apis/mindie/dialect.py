"""MindIE's dialect: its TGI interface, `{"inputs": "..", "parameters": {..}, "stream": false}`, on `/`.

Source: MindIE's description of its text and streaming inference interface. docs/mindie.md lists where this server
differs from the description, and where both differ from MindIE itself.
"""

from __future__ import annotations

import msgspec

from formatters.mindie.generate import MindieJsonFormatter, MindieSseFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.mindie.body import check_bounds, check_model_bounds, decode_mindie
from lmi_handlers.apis.tgi.dialect import TgiDialect
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.serving.parsed import Parsed


class MindieDialect(TgiDialect):
    """Dialect of `/` with `option.dialect=mindie`, and of `/invocations` if `option.tgi_compat` is set too.

    Errors and headers are TGI's.
    """

    def parse(self, payload: Payload) -> Parsed:
        """Validate a body. If it does not set `stream`, a call through SageMaker's streaming API does."""
        body, ignored = decode_mindie(payload)
        check_bounds(body)
        stream = body.stream if isinstance(body.stream, bool) else payload.stream
        formatter = MindieSseFormatter if stream else MindieJsonFormatter
        parsed = self._parsed(payload, body, ignored, formatter, full_text=False)

        def check_length(request: GenerationRequest, position: int, tokens: int, capabilities: Capabilities) -> None:  # noqa: ARG001  one prompt
            # With `option.max_input_tokens`, the rest of the context is for answers. Without it, they get what the prompt leaves.
            reserved = capabilities.max_input_tokens if self._properties.max_input_tokens else tokens
            check_model_bounds(
                body.parameters, tokens, capabilities, max_iter_times=capabilities.max_model_len - reserved
            )

        return msgspec.structs.replace(parsed, check_length=check_length)
