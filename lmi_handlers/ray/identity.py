"""Says which replica this is, on which node, and where it listens: for the labels of its metrics, its log and its server."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
import ray
from ray import serve
from ray.serve.context import _get_global_client

from lmi_handlers.core.log import NODE_VARIABLE, REPLICA_VARIABLE

_ATTRIBUTES = "OTEL_RESOURCE_ATTRIBUTES"


class Identity(msgspec.Struct, frozen=True):
    """Ray's id of a replica, and the IP address of its node."""

    replica: str
    node: str

    @property
    def environ(self) -> dict[str, str]:
        """The variables that make the server's log name them."""
        return {REPLICA_VARIABLE: self.replica, NODE_VARIABLE: self.node}


def own_identity() -> Identity:
    """Return the identity of the replica that this process is."""
    own_node = ray.get_runtime_context().get_node_id()
    listed = ray.nodes()  # type: ignore[no-untyped-call]
    node = next((each["NodeManagerAddress"] for each in listed if each["NodeID"] == own_node), own_node)
    return Identity(serve.get_replica_context().replica_id.unique_id, node)


def listening_host() -> str:
    """Return the address on which Ray Serve listens, and its replicas do too. Waits for Ray."""
    client = _get_global_client()
    return (client.http_config.host or "") if client is not None else ""


def server_environ(environ: Mapping[str, str], identity: Identity) -> dict[str, str]:
    """Return `environ` with what tells this replica's server from the others.

    OpenTelemetry's `service.instance.id` is the host's name otherwise, and the replicas of a node would write the same
    series.
    """
    given = environ.get(_ATTRIBUTES, os.environ.get(_ATTRIBUTES, ""))
    attributes = [given] if given else []
    attributes += [] if "service.instance.id=" in given else [f"service.instance.id={identity.replica}"]
    return {**environ, **identity.environ, _ATTRIBUTES: ",".join(attributes)}
