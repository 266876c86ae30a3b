"""LMI's dynamic-batch dialect, for `option.rolling_batch=disable`.

`inputs` is a string or a list; the answer is always a list. As in DJL, the text contains the prompt unless
`return_full_text` is false.

Source: the LMI input/output schema document.
"""

from __future__ import annotations

from collections.abc import Mapping

from formatters.lmi.dynamic import FAILURE, DynamicJsonFormatter, DynamicJsonLinesFormatter, pretty
from formatters.lmi.schemas import DynamicBatchError
from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.apis.lmi.body import parse_body
from lmi_handlers.apis.lmi.dialect import FIXED_HEADERS, status_of
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.serving.parsed import Parsed

_ROLLING_BATCH_ONLY = ("n", "best_of", "details", "decoder_input_details", "top_n_tokens", "output_formatter")


class LmiDynamicDialect(Dialect):
    """The schema that LMI documents for dynamic and static batching."""

    error_type = DynamicBatchError
    fixed_headers = FIXED_HEADERS

    def __init__(self, properties: ServingProperties, sampled_defaults: Mapping[str, float]) -> None:
        self._sampled_defaults = sampled_defaults
        self._budget = Budget.of(properties)
        self._streaming = properties.enable_streaming != "false"

    def parse(self, payload: Payload) -> Parsed:
        """Validate a body.

        `option.enable_streaming` streams all answers; SageMaker's streaming API streams one.
        """
        body = parse_body(payload, self._budget)
        formatter = DynamicJsonLinesFormatter if self._streaming or payload.stream else DynamicJsonFormatter
        without_effect = [name for name in _ROLLING_BATCH_ONLY if getattr(body.parameters, name) is not None]
        if body.stream not in (None, formatter.streams):
            without_effect.append("stream")
        full_text = body.parameters.return_full_text
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=body.prompts,
            sampling_params=body.parameters.sampling_params(
                stream=True, needs_logprobs=False, sampled_defaults=self._sampled_defaults
            ),
            priority=body.parameters.priority or 0,
            cache_salt=body.parameters.cache_salt,
            beam_search=body.parameters.beam_search_params(),
            truncate=body.parameters.truncate_to,
            stream=formatter.streams,
            return_full_text=full_text is None or full_text,
            ignored_parameters=(*body.ignored, *without_effect),
        )
        return Parsed(request, formatter, body.parameters.alias)

    def error(self, error: LMIError) -> Reply:
        """Render `{"code":424,"message":"invoke handler failure","error":"<cause>"}` on five lines, like DJL."""
        status = status_of(error)
        return Reply(status, pretty(DynamicBatchError(status, FAILURE, str(error))))
