"""The settings of a transform job: the parameters of SageMaker's CreateTransformJob, under its names and with its limits.

Source: the API reference of CreateTransformJob and of its types TransformInput, TransformOutput, DataProcessing and
ModelClientConfig.
"""

from __future__ import annotations

import mimetypes
from typing import Literal

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.tools.batch_transform.json_path import JsonPath
from lmi_handlers.tools.client.answer import media_type

JSON = "application/json"
CSV = "text/csv"
JSON_LINES = ("application/jsonlines", "application/jsonl", "application/x-jsonlines", "application/x-ndjson")
_TYPES = {".jsonl": JSON_LINES[0], ".ndjson": JSON_LINES[0], ".recordio": "application/x-recordio-protobuf"}
"""Content types that Python does not know."""

BatchStrategy = Literal["MultiRecord", "SingleRecord"]
SplitType = Literal["None", "Line", "RecordIO", "TFRecord"]
AssembleWith = Literal["None", "Line"]
CompressionType = Literal["None", "Gzip"]
JoinSource = Literal["None", "Input"]
Errors = Literal["in-place", "fail"]

MAX_TRANSFORMS = 100
MAX_TRANSFORM_MB = 100
"""Megabytes of all requests at a time, as SageMaker limits them."""


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line. None stands for the default, which may depend on the other choices and the server."""

    content_type: str | None = None
    accept: str | None = None
    batch_strategy: BatchStrategy | None = None
    split_type: SplitType | None = None
    assemble_with: AssembleWith | None = None
    compression_type: CompressionType = "None"
    max_payload_in_mb: int | None = None
    max_concurrent_transforms: int | None = None
    max_records: int = 256
    join_source: JoinSource = "None"
    input_filter: str = "$"
    output_filter: str = "$"
    invocations_max_retries: int = 3
    invocations_timeout_in_seconds: int = 600
    errors: Errors | None = None


class ExecutionParameters(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """A container's answer on `/execution-parameters`. The defaults are SageMaker's for containers without it.

    A payload of 0 stands for as much as a job may have.
    """

    max_concurrent_transforms: int = 1
    batch_strategy: Literal["MULTI_RECORD", "SINGLE_RECORD"] = "MULTI_RECORD"
    max_payload_in_mb: int = msgspec.field(default=6, name="MaxPayloadInMB")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A job's settings, complete and consistent. `max_payload` is in bytes, `timeout` in seconds."""

    content_type: str
    accept: str | None
    several: bool
    """True if a request may have several records."""
    split_type: SplitType
    lines: bool
    """True if each record's output is a line."""
    gzip: bool
    max_payload: int
    max_concurrent: int
    max_records: int
    join: bool
    input_filter: JsonPath | None
    output_filter: JsonPath | None
    max_retries: int
    timeout: int
    in_place: bool
    """True if a record that fails has its error in the place of its output. Otherwise its file fails."""

    @property
    def media_type(self) -> str:
        """The content type without parameters, such as `text/csv` of `text/csv; charset=utf-8`."""
        return media_type(self.content_type)

    @property
    def processes_data(self) -> bool:
        """True if records and outputs are read, and not just passed on."""
        return self.join or self.input_filter is not None or self.output_filter is not None


def settle(choices: Choices, parameters: ExecutionParameters, file_name: str) -> Settings:
    """Return the settings of a job whose first file is called `file_name`. Raises `ConfigError`."""
    content_type = choices.content_type or _guess_type(file_name, gzip=choices.compression_type == "Gzip")
    is_lines = media_type(content_type) in (*JSON_LINES, CSV)
    split = choices.split_type or ("Line" if is_lines else "None")
    assemble = choices.assemble_with or ("Line" if split == "Line" else "None")
    several = parameters.batch_strategy == "MULTI_RECORD" and (is_lines or split != "Line")
    if choices.batch_strategy is not None:
        several = choices.batch_strategy == "MultiRecord"
    errors = choices.errors or ("in-place" if split == assemble == "Line" else "fail")
    concurrent = choices.max_concurrent_transforms or min(max(parameters.max_concurrent_transforms, 1), MAX_TRANSFORMS)
    largest = MAX_TRANSFORM_MB // concurrent
    wanted = parameters.max_payload_in_mb
    payload = choices.max_payload_in_mb or (min(wanted, largest) if wanted > 0 else largest)
    settings = Settings(
        content_type=content_type,
        accept=choices.accept,
        several=several and split != "None",
        split_type=split,
        lines=assemble == "Line",
        gzip=choices.compression_type == "Gzip",
        max_payload=payload << 20,
        max_concurrent=concurrent,
        max_records=choices.max_records,
        join=choices.join_source == "Input",
        input_filter=_filter("--input-filter", choices.input_filter),
        output_filter=_filter("--output-filter", choices.output_filter),
        max_retries=choices.invocations_max_retries,
        timeout=choices.invocations_timeout_in_seconds,
        in_place=errors == "in-place",
    )
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    for option, value in (("--content-type", settings.content_type), ("--accept", settings.accept or "")):
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(f"{option} must have printable ASCII characters only, got {value!r}")
    if settings.max_concurrent * settings.max_payload > MAX_TRANSFORM_MB << 20:
        raise ConfigError(
            f"--max-concurrent-transforms ({settings.max_concurrent}) times --max-payload-in-mb "
            f"({settings.max_payload >> 20}) must not exceed {MAX_TRANSFORM_MB}"
        )
    by_line = settings.split_type == "Line" and settings.lines
    if settings.in_place and not by_line:
        raise ConfigError("--errors in-place needs --split-type Line and --assemble-with Line: an error is a line")
    if settings.processes_data:
        if settings.media_type not in (JSON, CSV, *JSON_LINES):
            raise ConfigError(
                f"--input-filter, --output-filter and --join-source need JSON, JSON lines or CSV, not {settings.content_type}"
            )
        if not by_line and not (settings.split_type == "None" and settings.media_type == JSON):
            raise ConfigError(
                "--input-filter, --output-filter and --join-source need --split-type Line and --assemble-with Line, "
                "or one JSON document per file"
            )


def _filter(option: str, text: str) -> JsonPath | None:
    """Return the path, or None for `$`, which selects everything."""
    try:
        path = JsonPath(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    return None if path.selects_all else path


def _guess_type(name: str, *, gzip: bool) -> str:
    name = name.lower()
    if gzip:
        name = name.removesuffix(".gz").removesuffix(".gzip")
    suffix = name[name.rfind(".") :]
    return _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or JSON
