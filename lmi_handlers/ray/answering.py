"""Chooses what answers a request that Ray passes to a replica. Its path is read here, before every rule."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import aiohttp
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lmi_handlers.core.request_path import BadPath
from lmi_handlers.ray.forwarding import Forwarded, path_of
from lmi_handlers.ray.metrics_page import asks_metrics
from lmi_handlers.ray.routing.router import Routed, Router

_STAYS = "x-request-disconnect-disabled"
"""Ray's header that keeps a request running after its client has left: it would keep its place in the batch."""

_CHANGES = {
    "POST": r"/models|(/models/[^/]+)?/adapters(/[^/]+/update)?|/v1/(un)?load_lora_adapter",
    "PUT": r"/models/[^/]+(/[^/]+)?|(/models/[^/]+)?/adapters/[^/]+",
    "DELETE": r"/models/[^/]+(/[^/]+)?|(/models/[^/]+)?/adapters/[^/]+",
}
"""Routes that load and unload, as regular expressions by method."""

_NO_CHANGES = (
    "models and adapters cannot be loaded or unloaded here, because the other replicas would not follow: "
    "change the files of the model and deploy it again"
)


async def answer_to(
    request: Request,
    session: aiohttp.ClientSession,
    answer_metrics: Callable[[], Awaitable[Response]],
    router: Router | None,
    *,
    is_alone: bool,
) -> Response:
    """Return the answer. `session` has the connections to the replica's server, `router` knows other replicas.

    Unless the replica `is_alone`, nothing is loaded or unloaded.
    """
    try:
        path = path_of(request.scope)
    except BadPath as error:
        return _refusal(404, str(error))
    if asks_metrics(request.method, path):
        return Forwarded(session, path, answer_metrics)  # the server knows who may read them
    if _STAYS in request.headers:
        return _refusal(400, f"{_STAYS} is not supported")
    if not is_alone and is_change(request.method, path):
        return _refusal(501, _NO_CHANGES)
    return Forwarded(session, path) if router is None else Routed(session, router, path)


def is_change(method: str, path: str) -> bool:
    """Tell whether a request would load or unload a model or an adapter."""
    return re.fullmatch(_CHANGES.get(method.upper(), "(?!)"), path) is not None  # aiohttp sends methods in upper case


def _refusal(status: int, cause: str) -> Response:
    return JSONResponse({"error": cause, "code": status}, status)
