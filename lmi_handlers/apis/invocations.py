"""The routes whose dialect the options choose: the invoke routes and `POST /`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from lmi_handlers.apis.base import Dialect, Payload
from lmi_handlers.apis.documentation import QUESTION, Documentation
from lmi_handlers.apis.routes import (
    EVENTS,
    GENERATING,
    JSON,
    JSON_LINES,
    TEXT,
    TEXT_RANKING,
    Contents,
    Endpoint,
    Failure,
    FrontEndError,
    Generation,
    Parameter,
    Route,
    Types,
)
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import ServedTask
from lmi_handlers.core.errors import InvalidRequest, ModelNotFound

ADAPTER_IDENTIFIER = "X-Amzn-SageMaker-Adapter-Identifier"
"""Header that names the adapter to use."""

PlainPrompt = Annotated[str, msgspec.Meta(min_length=1)]
"""A `text/plain` body."""

DOCUMENTATION = Documentation(examples={PlainPrompt: QUESTION})


class Invocations(Endpoint, frozen=True, kw_only=True):
    """Generates with the dialect that a body is written in: `claims` has the dialects by field, `native` is for the rest.

    A body with any of the fields that `native` requires is not another API's, whatever other fields it has. Bodies of
    several JSON lines are answered line by line.
    """

    native: Dialect
    claims: Mapping[str, Dialect]
    required: tuple[str, ...]

    def of(self, payload: Payload) -> Dialect:
        """Return the dialect of a body."""
        if payload.content_type == TEXT or not any(f'"{name}"'.encode() in payload.data for name in self.claims):
            return self.native  # spares it from decoding the fields
        try:
            fields = payload.fields
        except InvalidRequest:
            return self.native
        if any(name in fields for name in self.required):
            return self.native
        return next((dialect for name, dialect in self.claims.items() if name in fields), self.native)


def invocations(native: Generation, claims: Mapping[str, Generation], served: ServedTask) -> Invocations:
    """Return the endpoint of the invoke routes of a server with the task `served`.

    Bodies for another task are known, because the error says which task that is, but are not documented.
    """
    generations = [native, *(claimed for claimed in claims.values() if claimed.task in (None, served))]
    dialects = tuple(dict.fromkeys(generation.dialect for generation in generations))
    takes_text = served != TEXT_RANKING  # a single text is no pair
    bodies = _joined(JSON, [generation.bodies for generation in generations])
    found = [generation.answers for generation in generations]
    whole = _joined(JSON, found)
    errors = tuple(dict.fromkeys(dialect.error_type for dialect in dialects))
    answers = {
        **native.answers,
        JSON: whole,
        EVENTS: _joined(EVENTS, found),
        JSON_LINES: (*_joined(JSON_LINES, found), *whole, *errors),
    }
    structs = (
        body for body in native.bodies.get(JSON, ()) if isinstance(body, type) and issubclass(body, msgspec.Struct)
    )
    required = [field.encode_name for body in structs for field in msgspec.structs.fields(body) if field.required]
    return Invocations(
        native=native.dialect,
        claims={name: generation.dialect for name, generation in claims.items()},
        required=tuple(required),
        dialects=dialects,
        errors=GENERATING,
        bodies={JSON: bodies, **({TEXT: (PlainPrompt,)} if takes_text else {}), JSON_LINES: bodies},
        answers={content_type: types for content_type, types in answers.items() if types},
    )


def _joined(content_type: str, contents: Iterable[Contents]) -> Types:
    return tuple(dict.fromkeys(kind for content in contents for kind in content.get(content_type, ())))


def invoke_routes(endpoint: Invocations, properties: ServingProperties) -> Sequence[Route]:
    """Return `/invocations` and its other names."""
    what = (
        "Embed texts."
        if properties.embeds
        else "Score pairs of texts."
        if properties.ranks
        else "Generate text from a prompt, or an answer to a conversation."
    )
    summary = f"{what} JSON lines are answered line by line."
    adapters = (
        Parameter(name="adapter", place="query", description="The adapter to use, unless the body names one."),
        Parameter(
            name=ADAPTER_IDENTIFIER,
            place="header",
            description="The adapter to use, unless the body names one. Takes precedence over `adapter`.",
        ),
    )
    sessions = (
        Parameter(
            name="X-Amzn-SageMaker-Session-Id",
            place="header",
            description='The session of this request. The body `{"requestType": "NEW_SESSION"}` begins one, and '
            '`{"requestType": "CLOSE"}` ends it.',
        ),
    )
    parameters = (
        *(adapters if properties.enable_lora else ()),
        *(sessions if properties.enable_stateful_sessions else ()),
    )
    return model_routes(endpoint, properties.name, summary, parameters)


def model_routes(
    endpoint: Endpoint, model_name: str, summary: str, parameters: tuple[Parameter, ...] = ()
) -> Sequence[Route]:
    """Return `/invocations` and its other names, which DJL and multi-model endpoints use."""
    model = Parameter(name="model", place="path", description="The name of the served model.", values=(model_name,))
    version = Parameter(name="version", place="path", description="Ignored: there is only one version.")
    named = Parameter(name="model_name", place="query", description=model.description, values=model.values)
    paths = {
        "/invocations": ("invocations", (named,)),
        "/predictions/{model}": ("predictions", (model,)),
        "/predictions/{model}/{version}": ("predictions_of_version", (model, version)),
        "/models/{model}/invoke": ("invoke_model", (model,)),
    }
    error = FrontEndError(404, "ModelNotFoundException", "The model 'other' was not found")
    unknown = Failure(status=404, reason=str(ModelNotFound.__doc__), content=(FrontEndError,), examples=(error,))
    return [
        Route("POST", path, name, "LMI", summary, endpoint, parameters=(*own, *parameters), failures=(unknown,))
        for path, (name, own) in paths.items()
    ]


def root_route(generation: Generation, properties: ServingProperties) -> Route:
    """Return `POST /`: TGI's route for both streams and single answers, or TEI's for embeddings or scores."""
    if properties.pools:
        name, what = ("compat_embed", "Embed texts.") if properties.embeds else ("compat_rerank", "Score texts.")
        return Route("POST", "/", name, "Text Embeddings Inference", what, generation)
    return Route(
        "POST",
        "/",
        "compat_generate",
        "Text Generation Inference",
        "Generate text from a prompt. `stream` in the body asks for a stream of tokens.",
        generation,
    )
