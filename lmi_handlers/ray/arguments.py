"""What the application is built with: `serve run lmi_handlers.ray:app model_dir=/models/llama replicas=2`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from lmi_handlers.ray.routing.keys import By


class Arguments(BaseModel):
    """Arguments of the application. Everything about the model itself is in its serving.properties.

    `model_dir` is the same directory on every node. `num_cpus` and `num_gpus` are what Ray reserves for each replica, and
    default to what the model needs. `routing` is what replicas share requests by.
    `environ` is added to the environment of the servers.
    """

    model_config = ConfigDict(extra="forbid")

    model_dir: Annotated[str, Field(min_length=1, max_length=4096)]
    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    num_cpus: Annotated[float | None, Field(gt=0, le=1024, allow_inf_nan=False)] = None
    num_gpus: Annotated[int | None, Field(ge=0, le=64)] = None
    routing: By = "least"
    environ: Annotated[dict[str, Annotated[str, Field(max_length=32768)]], Field(max_length=256)] = {}
