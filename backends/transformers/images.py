"""A prompt with images as the model's own processor prepares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import TokenRequest

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """The prompt's tokens, those of its images among them, and the further arguments of the model's first forward, on the CPU."""

    token_ids: list[int]
    model_kwargs: Mapping[str, Any]


class ImageProcessor:
    """Calls a processor of the library. For one thread."""

    def __init__(self, processor: Any, dtype: torch.dtype) -> None:
        self._processor = processor
        self._dtype = dtype

    def process(self, request: TokenRequest, images: list[Image.Image]) -> ImageInputs:
        """Return the model's input for a prompt. Raises `InvalidRequest` where text and images do not fit."""
        assert request.image_prompt is not None  # noqa: S101  who else has images
        text = request.image_prompt.text
        try:
            # A template has written the special tokens itself. Where a batch is one, lists of images are one's own.
            batch = self._processor(text=[text], images=[images], add_special_tokens=False, return_tensors="pt")
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a model's processor makes of what does not fit
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InvalidRequest(f"the model's processor refuses the images: {reason}", field="messages") from error
        batch = batch.to(dtype=self._dtype)
        token_ids: list[int] = batch.pop("input_ids")[0].tolist()
        return ImageInputs(token_ids, dict(batch))
