"""Classification of images and of audio with the library's pipelines."""

from __future__ import annotations

import base64
import binascii
import io
import math
import wave
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import UNSET, Meta, UnsetType
from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
)

from backends.image_decoder import MODULE, decode_image
from backends.limited_process import LimitedProcess
from backends.transformers.loading import load_model
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.request import ImageSource
from lmi_handlers.media.images import ImageLoader, image_loader
from lmi_handlers.tasks.loading import make_pipeline
from lmi_handlers.tasks.task import MAX_ROWS, Parameters, Task

MAX_SECONDS = 60
"""Length of a sound. The models' memory grows with its square."""

_URLS = ("data:", "https:", "http:")


class MediaParameters(Parameters, frozen=True):
    """Of the pipelines."""

    top_k: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    function_to_apply: Literal["sigmoid", "softmax", "none"] | UnsetType = UNSET


class ImageClassification(Task):
    """Labels images: a file as the body, or base64 or URLs in JSON, within the limits for images in prompts."""

    parameters = MediaParameters
    reads_files = True

    def __init__(self, model: Any, processor: Any, loader: ImageLoader) -> None:
        self._pipeline = make_pipeline("image-classification", model, image_processor=processor)
        self._loader = loader
        self._decoder = LimitedProcess(MODULE)

    @classmethod
    def load(cls, name: str, path: Path, properties: ServingProperties) -> Task:  # noqa: ARG003  one task
        processor = _load_processor(AutoImageProcessor, path, properties)
        model = load_model(path, properties, lambda _config: AutoModelForImageClassification)
        return cls(model, processor, image_loader(properties))

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        given = inputs if isinstance(inputs, list) else [inputs]
        sources = [ImageSource(_as_url(item), "inputs") for item in given]
        return [
            decode_image(image, self._decoder, math.inf) for image in self._loader.load(sources)
        ], given is not inputs

    def run(self, items: list[Any], parameters: Parameters) -> list[Any]:
        results: list[Any] = self._pipeline(items, batch_size=MAX_ROWS, **parameters.given())
        return results


class AudioClassification(Task):
    """Labels sounds: a WAV file as the body, or base64 in JSON."""

    parameters = MediaParameters
    reads_files = True

    def __init__(self, model: Any, extractor: Any) -> None:
        self._pipeline = make_pipeline("audio-classification", model, feature_extractor=extractor)
        self._rate = int(extractor.sampling_rate)

    @classmethod
    def load(cls, name: str, path: Path, properties: ServingProperties) -> Task:  # noqa: ARG003  one task
        extractor = _load_processor(AutoFeatureExtractor, path, properties)
        return cls(load_model(path, properties, lambda _config: AutoModelForAudioClassification), extractor)

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        given = inputs if isinstance(inputs, list) else [inputs]
        return [read_wav(_as_bytes(item), self._rate) for item in given], given is not inputs

    def run(self, items: list[Any], parameters: Parameters) -> list[Any]:
        """Sounds of one length share a forward pass. Not all models have a mask for padding."""
        by_size: dict[int, list[int]] = {}
        for place, samples in enumerate(items):
            by_size.setdefault(len(samples), []).append(place)
        results: list[Any] = [None] * len(items)
        for places in by_size.values():
            found = self._pipeline([items[place] for place in places], batch_size=MAX_ROWS, **parameters.given())
            for place, result in zip(places, found, strict=True):
                results[place] = result
        return results


def read_wav(data: bytes, rate: int) -> np.ndarray[Any, Any]:
    """Return the samples of a WAV file as float32 from -1 to 1, all channels averaged. Raises `InvalidRequest`."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            found, width, channels, frames = (
                file.getframerate(),
                file.getsampwidth(),
                file.getnchannels(),
                file.getnframes(),
            )
            if found != rate:
                raise InvalidRequest(f"is sampled at {found} Hz; the model needs {rate} Hz", field="inputs")
            if frames > MAX_SECONDS * rate:
                raise InvalidRequest(
                    f"is {frames / rate:.0f} s long; at most {MAX_SECONDS} s are possible", field="inputs"
                )
            raw = file.readframes(frames)
    except (wave.Error, EOFError, RuntimeError) as error:
        raise InvalidRequest(
            f"is not a WAV file of PCM samples ({error or 'it is cut off'})", field="inputs"
        ) from error
    samples = _samples(raw[: len(raw) // (width * channels) * width * channels], width)
    if not samples.size:
        raise InvalidRequest("has no samples", field="inputs")
    mono: np.ndarray[Any, Any] = samples.reshape(-1, channels).mean(axis=1, dtype=np.float32)
    return mono


def _samples(raw: bytes, width: int) -> np.ndarray[Any, Any]:
    if width not in (1, 2, 3, 4):
        raise InvalidRequest(f"has samples of {8 * width} bits; 8, 16, 24 and 32 are supported", field="inputs")
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        padded = np.zeros((len(raw) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return padded.view("<i4")[:, 0].astype(np.float32) / 2**31
    samples: np.ndarray[Any, Any] = np.frombuffer(raw, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)
    return samples


def _as_url(item: object) -> str:
    """Return the URL of an image in a body: as it is, or around base64 or bytes."""
    if isinstance(item, bytes):
        item = base64.b64encode(item).decode()
    if not isinstance(item, str):
        raise InvalidRequest("must be an image, as base64 or URL, or a list of them", field="inputs")
    return item if item.startswith(_URLS) else f"data:;base64,{item}"


def _as_bytes(item: object) -> bytes:
    if isinstance(item, bytes):
        return item
    if not isinstance(item, str):
        raise InvalidRequest("must be a sound, as base64, or a list of them", field="inputs")
    try:
        return base64.b64decode(item, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"is not base64: {error}", field="inputs") from error


def _load_processor(kind: Any, path: Path, properties: ServingProperties) -> Any:
    try:
        return kind.from_pretrained(path, trust_remote_code=properties.trust_remote_code)
    except (ImportError, KeyError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"option.model_id: the preprocessor in {path} cannot be loaded: {reason}") from error
