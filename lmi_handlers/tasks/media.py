"""Classification of images and of audio with the library's pipelines."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType
from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
)

from backends.image_decoder import MODULE, decode_image
from backends.limited_process import LimitedProcess
from backends.sounds import SoundReader
from backends.transformers.loading import load_model
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import ImageSource
from lmi_handlers.media.images import ImageLoader, image_loader
from lmi_handlers.tasks.loading import load_processor, make_pipeline
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
        processor = load_processor(AutoImageProcessor, path, properties)
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
    """Labels sounds: a file as the body, or base64 in JSON."""

    parameters = MediaParameters
    reads_files = True

    def __init__(self, model: Any, extractor: Any) -> None:
        self._pipeline = make_pipeline("audio-classification", model, feature_extractor=extractor)
        self._reader = SoundReader(int(extractor.sampling_rate), MAX_SECONDS)

    @classmethod
    def load(cls, name: str, path: Path, properties: ServingProperties) -> Task:  # noqa: ARG003  one task
        extractor = load_processor(AutoFeatureExtractor, path, properties)
        return cls(load_model(path, properties, lambda _config: AutoModelForAudioClassification), extractor)

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        given = inputs if isinstance(inputs, list) else [inputs]
        return self._reader.read(given, self.is_unwanted), given is not inputs

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


def _as_url(item: object) -> str:
    """Return the URL of an image in a body: as it is, or around base64 or bytes."""
    if isinstance(item, bytes):
        item = base64.b64encode(item).decode()
    if not isinstance(item, str):
        raise InvalidRequest("must be an image, as base64 or URL, or a list of them", field="inputs")
    return item if item.startswith(_URLS) else f"data:;base64,{item}"
