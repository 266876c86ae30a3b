"""The server's own routes, which answer about the server: `/ping`, `/metrics`, `/execution-parameters`, `/openapi.json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.apis.base import Reply, front_end_json
from lmi_handlers.apis.routes import JSON, TEXT, Failure, Probe, Route
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import EngineNotReady
from lmi_handlers.engine.status import EngineState
from lmi_handlers.metrics.requests import CONTENT_TYPE
from lmi_handlers.serving.served import Served
from lmi_handlers.serving.served_model import ServedModel

SAGEMAKER = "SageMaker"
TGI = "Text Generation Inference"  # TGI has these routes, too


class Health(msgspec.Struct):
    """A model's state. While it is not healthy, `phase` says why. `seconds` is how long a phase of loading has lasted."""

    status: str
    phase: str | UnsetType = UNSET
    seconds: float | UnsetType = UNSET


class ExecutionParameters(msgspec.Struct, rename="pascal"):
    """The defaults of a batch transform job, unless the job has its own."""

    max_concurrent_transforms: int
    batch_strategy: str
    max_payload_in_mb: int = msgspec.field(name="MaxPayloadInMB")


MAX_TRANSFORM_MB = 100
"""SageMaker's limit for `MaxPayloadInMB`, and for its product with `MaxConcurrentTransforms`."""

LINES_AT_A_TIME = 32
"""Maximum number of records of one JSON-lines body in the engine at a time."""


DOCUMENT_PATHS = ("/openapi.json", "/api-doc/openapi.json")
HEALTHY = {"my-model": Health("Healthy")}
METRICS = {TEXT: "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"}


def server_routes(document: Callable[[], bytes], properties: ServingProperties) -> Sequence[Route]:
    """Return the routes. `document` returns the OpenAPI document."""
    states = (dict[str, Health],)
    health = "Check whether requests are accepted, and if not, why."
    loading = {"my-model": Health("Starting", "loading weights", 4.2)}
    unhealthy = Failure(status=503, reason=str(EngineNotReady.__doc__), content=states, examples=(loading,))
    pings = Probe(reply=ping, answers={JSON: states}, examples={JSON: HEALTHY})
    parameters = Probe(
        reply=partial(execution_parameters, max_request_size=properties.max_request_size),
        answers={JSON: (ExecutionParameters,)},
        examples={JSON: ExecutionParameters(3, "MULTI_RECORD", 6)},
    )
    return (
        Route("GET", "/ping", "ping", SAGEMAKER, health, pings, failures=(unhealthy,)),
        Route("POST", "/ping", "post_ping", SAGEMAKER, health, pings, failures=(unhealthy,)),
        Route(
            "GET",
            "/execution-parameters",
            "execution_parameters",
            SAGEMAKER,
            "Get the best parameters for a batch transform job.",
            parameters,
            failures=(unhealthy,),
        ),
        Route(
            "GET",
            "/metrics",
            "metrics",
            TGI,
            "Get Prometheus metrics.",
            Probe(reply=metrics, answers={TEXT: (str,)}, examples=METRICS),
        ),
        *document_routes(document),
    )


def document_routes(document: Callable[[], bytes]) -> Sequence[Route]:
    """Return the routes of the OpenAPI document."""
    openapi = Probe(
        reply=lambda _: Reply(200, document()),
        answers={JSON: (dict[str, object],)},
        examples={JSON: {"openapi": "3.1.0", "info": {"title": "lmi-handlers"}, "paths": {}}},
    )
    return (
        Route("GET", DOCUMENT_PATHS[0], "openapi", TGI, "Get this document.", openapi),
        Route("GET", DOCUMENT_PATHS[1], "api_doc", TGI, "Get this document, at TGI's path.", openapi),
    )


def ping(model: Served) -> Reply:
    """SageMaker's health check: 200 once the model accepts requests, until then 503 with the phase in the body."""
    state = model.state
    if state is EngineState.READY:
        return Reply(200, front_end_json({model.name: {"status": "Healthy"}}))
    health: dict[str, object] = {"status": state.value.capitalize(), "phase": model.phase}
    if state is EngineState.STARTING:
        health["seconds"] = round(model.phase_seconds, 1)
    return Reply(503, front_end_json({model.name: health}))


def metrics(model: Served) -> Reply:
    """Prometheus metrics, summed over all processes of this server."""
    return Reply(200, model.metrics.page().encode(), CONTENT_TYPE)


def execution_parameters(model: Served, *, max_request_size: int) -> Reply:
    """Return what fills the engine: several records per body, or single records if the model's own code answers."""
    if not isinstance(model, ServedModel):
        concurrent, strategy = 1, "SINGLE_RECORD"
    else:
        try:
            places = model.facts.capabilities.max_num_seqs
        except EngineNotReady:
            return ping(model)
        # One more, so that the engine has work while the last records of a body are answered.
        concurrent, strategy = min(places // LINES_AT_A_TIME + 1, MAX_TRANSFORM_MB), "MULTI_RECORD"
    megabytes = max(1, min(max_request_size >> 20, MAX_TRANSFORM_MB // concurrent))
    return Reply(200, msgspec.json.encode(ExecutionParameters(concurrent, strategy, megabytes)))
