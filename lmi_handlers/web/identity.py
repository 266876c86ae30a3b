"""The identity of a request: what it has in common with its client's later attempts, and with no other request.

It is what the client says, so it counts only together with an equal body, the same API key and the same tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec
from werkzeug.datastructures import Headers

from lmi_handlers.core.errors import UnsupportedFeature
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.usage import Usage

IDEMPOTENCY_KEY = "Idempotency-Key"
INFERENCE_ID = "X-Amzn-SageMaker-Inference-Id"
SESSION_ID = "X-Amzn-SageMaker-Session-Id"
"""Header of requests, and of the answer that begins a session: there, `<id>; Expires=<time>`."""

NEW_SESSION = "NEW_SESSION"
"""Value of that header, and of `requestType`, with which a client asks for a session."""

NO_SESSION = "sessions belong to /invocations and its other names"

ATTRIBUTE = "idempotency-key"
"""The custom attribute that stands for the header, which SageMaker does not pass on."""


def identify(
    request: GenerationRequest, headers: Headers, attributes: Mapping[str, str], usage: Usage
) -> GenerationRequest:
    """Return the request with its identity, or as it is if it has none. `usage` says whose it is.

    A client may ask for the same twice in a session, and want two answers. So a session counts only where these would be
    equal. A seed that the server has chosen becomes one that it would choose again.
    """
    given = headers.get(IDEMPOTENCY_KEY) or attributes.get(ATTRIBUTE) or headers.get(INFERENCE_ID)
    params = request.sampling_params
    if not given and (params.greedy or (params.seed is not None and not request.has_random_seed)):
        session = headers.get(SESSION_ID)
        given = f"{SESSION_ID}: {session}" if session and session != NEW_SESSION else None
    if not given:
        return request
    identity = msgspec.msgpack.encode((usage.owner, given))
    if request.has_random_seed:
        seed = int.from_bytes(blake2b(identity, digest_size=8).digest(), "little") or 1
        params = msgspec.structs.replace(params, seed=seed)
    return msgspec.structs.replace(request, identity=identity, owner=usage.owner, sampling_params=params)


def check_no_session(headers: Headers, why: str = NO_SESSION) -> None:
    """Raise `UnsupportedFeature` if the request names a session."""
    if headers.get(SESSION_ID):
        raise UnsupportedFeature(f"{SESSION_ID} is not supported: {why}")
