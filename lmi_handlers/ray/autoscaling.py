"""Autoscaling as the application asks Ray for it: bounds, delays and our policy."""

from __future__ import annotations

import warnings

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from lmi_handlers.preflight.configuration import Configuration
from lmi_handlers.ray.arguments import Arguments
from lmi_handlers.ray.resources import batch_size

_POLICY = "lmi_handlers.ray.autoscaling_policy:Policy"
_RECORD_SECONDS = 2.0
_LOOK_BACK_SECONDS = 10.0


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
