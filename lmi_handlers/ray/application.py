"""The application: one deployment, whose replicas each serve the model of a directory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, DeploymentActorConfig

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.preflight.configuration import Configuration, read_configuration
from lmi_handlers.ray.arguments import Arguments
from lmi_handlers.ray.environ import replica_environ
from lmi_handlers.ray.replica import Replica
from lmi_handlers.ray.resources import batch_size, has_room, max_ongoing_requests, nodes_of, resources_of
from lmi_handlers.ray.routing.members import ACTOR, Members
from lmi_handlers.ray.routing.router import Routing, is_behind_haproxy

DEPLOYMENT = "lmi"
"""Its name: a Serve configuration may override the options of the deployment."""

_POLICY = "lmi_handlers.ray.autoscaling_policy:Policy"
_RECORD_SECONDS = 2.0
_LOOK_BACK_SECONDS = 10.0
_HEALTH_CHECK_SECONDS = 2.0
_RETRIES = 3
_SHUTDOWN_SECONDS = 90
"""For what a replica does at its end besides its last requests: Ray keeps it reachable for 30 s, and its server ends."""

_MEMBERS = DeploymentActorConfig(name=ACTOR, actor_class=ray.remote(Members), actor_options={"num_cpus": 0})


def app(given: Mapping[str, object]) -> Application:
    """Build the application from `Arguments`. Called by `serve run` and `serve deploy`.

    Raises `ConfigError` and pydantic's `ValidationError`. Ray itself would only validate if annotations were no strings.
    """
    arguments = Arguments.model_validate(given)
    environ = {"LMI_MODEL_DIR": arguments.model_dir, **arguments.environ}
    return build(arguments, read_configuration({**os.environ, **environ}), environ)


def build(
    arguments: Arguments,
    configuration: Configuration,
    environ: Mapping[str, str],
    ray_environ: Mapping[str, str] | None = None,
) -> Application:
    """Build the application for a configuration. Raises `ConfigError`.

    `environ` is added to the environment of the servers, `ray_environ` to that of the actors that start them.
    """
    properties = configuration.properties
    nodes = nodes_of(ray.nodes())  # type: ignore[no-untyped-call]
    resources = resources_of(
        configuration, nodes, arguments.most_replicas, num_cpus=arguments.num_cpus, num_gpus=arguments.num_gpus
    )
    routing = _routing(arguments, configuration, ray_environ or {})
    autoscaling = autoscaling_config(arguments, configuration)
    number: dict[str, Any] = {"num_replicas": arguments.most_replicas}
    deployment = serve.deployment(
        name=DEPLOYMENT,
        **(number if autoscaling is None else {"autoscaling_config": autoscaling}),
        ray_actor_options={
            "num_cpus": resources.num_cpus,
            "num_gpus": resources.num_gpus,
            "runtime_env": {"env_vars": {**(ray_environ or {}), **replica_environ()}},
        },
        max_ongoing_requests=max_ongoing_requests(configuration),
        health_check_period_s=_HEALTH_CHECK_SECONDS,
        health_check_timeout_s=properties.model_loading_timeout,
        graceful_shutdown_timeout_s=properties.predict_timeout + _SHUTDOWN_SECONDS,
        max_constructor_retry_count=_RETRIES,
        # In an update, a replica more, rounded up: the old ones go on until it is ready. Without room, it would wait for ever.
        max_surge_percent=1 if has_room(nodes, resources, arguments.most_replicas + 1) else 0,
        deployment_actors=[_MEMBERS] if routing is not None else None,
    )(Replica)
    return deployment.bind(dict(environ), routing)


def _routing(arguments: Arguments, configuration: Configuration, ray_environ: Mapping[str, str]) -> Routing | None:
    """Return how replicas share requests, None if there is one. Raises `ConfigError`."""
    if arguments.most_replicas == 1:
        return None
    if arguments.routing != "least" and not is_behind_haproxy({**os.environ, **ray_environ}):
        raise ConfigError(f"routing={arguments.routing} needs RAY_SERVE_ENABLE_HA_PROXY=1, for all of Ray")
    return Routing(arguments.routing, configuration.properties.name)


def autoscaling_config(arguments: Arguments, configuration: Configuration) -> AutoscalingConfig | None:
    """Return Ray's configuration, or None if the number of replicas is fixed.

    Each replica records its load every two seconds, and the policy decides by the mean of the last ten.
    """
    if arguments.max_replicas is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the variable that is to replace it is not read yet
        return AutoscalingConfig(
            min_replicas=arguments.min_replicas or 1,
            initial_replicas=arguments.replicas,
            max_replicas=arguments.max_replicas,
            upscale_delay_s=arguments.upscale_delay_s,
            downscale_delay_s=arguments.downscale_delay_s,
            metrics_interval_s=_RECORD_SECONDS,
            look_back_period_s=_LOOK_BACK_SECONDS,
            policy=AutoscalingPolicy(  # type: ignore[no-untyped-call]
                policy_function=_POLICY,
                policy_kwargs={"batch": batch_size(configuration), "target_usage": arguments.target_usage},
            ),
        )
