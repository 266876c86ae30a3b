"""Arguments of the application: `serve run lmi_handlers.ray:app model_dir=/models/llama replicas=2`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lmi_handlers.ray.routing.keys import By

_Replicas = Annotated[int, Field(ge=1, le=4096)]
_Delay = Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]


class Arguments(BaseModel):
    """Arguments of the application. Everything about the model itself is in its serving.properties.

    `model_dir` is the same directory on every node. `num_cpus` and `num_gpus` are what Ray reserves for each replica, and
    default to what the model needs. `routing` is what replicas share requests by.
    `environ` is added to the environment of the servers.

    With `max_replicas`, Ray starts and stops replicas by their load, from `min_replicas`, and `replicas` is only the number
    at the start. The delays are in seconds. At least one replica always runs: HAProxy has nowhere to keep requests while
    one starts.
    """

    model_config = ConfigDict(extra="forbid")

    model_dir: Annotated[str, Field(min_length=1, max_length=4096)]
    replicas: _Replicas | None = None
    min_replicas: _Replicas | None = None
    max_replicas: _Replicas | None = None
    upscale_delay_s: _Delay = 10.0
    downscale_delay_s: _Delay = 300.0
    target_usage: Annotated[float, Field(gt=0, le=1)] = 0.8
    num_cpus: Annotated[float | None, Field(gt=0, le=1024, allow_inf_nan=False)] = None
    num_gpus: Annotated[int | None, Field(ge=0, le=64)] = None
    routing: By = "least"
    environ: Annotated[dict[str, Annotated[str, Field(max_length=32768)]], Field(max_length=256)] = {}

    @property
    def most_replicas(self) -> int:
        """The allowed number of replicas."""
        return self.max_replicas or self.replicas or 1

    @model_validator(mode="after")
    def _check_bounds(self) -> Arguments:
        if self.max_replicas is None:
            if self.min_replicas is not None:
                raise ValueError("min_replicas requires max_replicas; for a fixed number, set replicas")
            return self
        least = self.min_replicas or 1
        if least > self.max_replicas:
            raise ValueError(f"max_replicas={self.max_replicas} must not be less than min_replicas={least}")
        if self.replicas is not None and not least <= self.replicas <= self.max_replicas:
            raise ValueError(f"replicas={self.replicas} must be between {least} and {self.max_replicas}")
        return self
