"""The model's own formatters on the invoke routes: before a body is parsed, and in place of the API's formatter."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec

from formatters.base import Formatter
from formatters.openai.completions import CompletionJsonFormatter, CompletionJsonLinesFormatter, CompletionOptions
from lmi_handlers.apis.base import Dialect, Payload
from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.apis.lmi.dialect import REQUEST_FORMATTERS, LmiDialect
from lmi_handlers.apis.lmi.dynamic import LmiDynamicDialect
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt
from lmi_handlers.custom_code.formatting.client import Calls, FormatterClient
from lmi_handlers.custom_code.formatting.messages import FormatInput, ScriptFormatters
from lmi_handlers.custom_code.messages import Invoke
from lmi_handlers.serving.custom_formatters import RecordRewriter, TokenFormatter, TokenOptions
from lmi_handlers.serving.parsed import ModelFacts, Parsed

PATIENCE = 1.0
"""Seconds that a request waits for formatters that are being started."""


class Formatting:
    """The formatters of a model."""

    def __init__(self, client: FormatterClient, properties: ServingProperties, facts: Callable[[], ModelFacts]) -> None:
        self._client = client
        self._properties = properties
        self._facts = facts

    def format_input(self, payload: Payload, invoke: Invoke, new_calls: Callable[[], Calls]) -> Payload:
        """Return what the input formatter makes of a body, or the payload itself if there is none.

        `invoke` is the request as code of the model's gets it. Raises the error that ends the request.
        """
        scripts = self._client.scripts(PATIENCE)
        named = _with_adapter(payload) if scripts.keys() - {""} else payload
        place = next((name for name in (named.adapter or "", "") if name in scripts and scripts[name].input), None)
        if place is None:
            return payload
        calls = new_calls()
        try:
            calls.send(FormatInput(calls.number, scripts[place].place, invoke.properties, invoke.parts))
            formatted = calls.receive()
        finally:
            calls.close(forget=False)
        return msgspec.structs.replace(
            named, data=formatted.data, content_type="application/json", context=formatted.context
        )

    def calls(self, deadline: Deadline) -> Calls:
        """Return the calls for one request."""
        return Calls(self._client, deadline)

    def format_output(
        self, parsed: Parsed, payload: Payload, dialect: Dialect, new_calls: Callable[[], Calls]
    ) -> Parsed:
        """Return the request with an output formatter of the model in place of the API's, if there is one."""
        scripts = self._client.scripts(PATIENCE)
        names = {prompt.adapter or "" for prompt in parsed.request.prompts}
        adapter = next((name for name in (*(names if len(names) == 1 else ()), "") if _writes(scripts.get(name))), None)
        if adapter is None:
            return parsed
        kind = scripts[adapter].output
        if kind != "tokens":
            formatter = parsed.formatter
            if kind == "response" and isinstance(dialect, LmiDialect | LmiDynamicDialect):
                formatter = self._completion
            rewriter = RecordRewriter(scripts[adapter].place, new_calls)
            return msgspec.structs.replace(parsed, formatter=formatter, rewriter=rewriter)
        parameters = _parameters(payload)
        if isinstance(dialect, LmiDialect) and parameters.get("output_formatter") in REQUEST_FORMATTERS:
            return parsed  # as in LMI, the request's own choice takes precedence
        options = TokenOptions(
            place=scripts[adapter].place,
            parameters=msgspec.json.encode(parameters | {"stream": parsed.request.stream}),
            tgi_compat=self._properties.tgi_compat,
            context=payload.context,
        )
        params = parsed.request.sampling_params
        if params.logprobs is None and "logprobs" not in self._facts().capabilities.unsupported:
            params = msgspec.structs.replace(params, logprobs=0)  # as in LMI, every token has its own
        return msgspec.structs.replace(
            parsed,
            request=msgspec.structs.replace(parsed.request, sampling_params=params),
            formatter=partial(TokenFormatter, options=options, new_calls=new_calls),
        )

    def _completion(self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...]) -> Formatter:
        """Return the formatter for LMI's own bodies. LMI shows them to output formatters as OpenAI's completions."""
        options = CompletionOptions(
            model=self._properties.name,
            created=int(time.time()),
            n=request.sampling_params.n,
            echo=request.return_full_text,
            logprobs=request.sampling_params.logprobs,
        )
        kind = CompletionJsonLinesFormatter if request.stream else CompletionJsonFormatter
        return kind(request, prompts, options=options)


def _writes(script: ScriptFormatters | None) -> bool:
    return script is not None and script.output is not None


def _with_adapter(payload: Payload) -> Payload:
    """Return a request with the adapter of its body, as far as that can be told before the body is parsed."""
    try:
        adapters = decode_typed(payload.fields["adapters"], object)
    except (InvalidRequest, KeyError):
        return payload
    names = adapters if isinstance(adapters, list) else [adapters]
    if not names or not isinstance(names[0], str):
        return payload
    return msgspec.structs.replace(payload, adapter=names[0] or None, adapter_field="adapters")


def _parameters(payload: Payload) -> dict[str, object]:
    """Return the parameters of a body: the object `parameters` of LMI, or in other APIs all fields except the prompt."""
    if payload.content_type == "text/plain":
        return {}
    fields = payload.fields
    if "parameters" in fields:
        return decode_typed(fields["parameters"], dict[str, object])
    return {
        name: decode_typed(value, object)
        for name, value in fields.items()
        if name not in ("inputs", "prompt", "messages")
    }
