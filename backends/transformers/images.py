"""Prepares prompts with images, using the model's own processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import TokenRequest

if TYPE_CHECKING:
    from backends.media_preparer import DecodedMedia


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """The prompt's tokens, including image tokens, and extra arguments for the first forward pass, on the CPU."""

    token_ids: list[int]
    model_kwargs: Mapping[str, Any]


class ImageProcessor:
    """Calls the library's processor. Not thread-safe."""

    def __init__(self, processor: Any, dtype: torch.dtype) -> None:
        self._processor = processor
        self._dtype = dtype

    def process(self, request: TokenRequest, media: DecodedMedia) -> ImageInputs:
        """Return the model's input for a prompt. Raises `InvalidRequest` if text and images do not match."""
        assert request.prompt.media_prompt is not None  # noqa: S101  only called for prompts with images
        text = request.prompt.media_prompt.text
        try:
            # The chat template has added the special tokens. Images are nested because the batch has one prompt.
            batch = self._processor(text=[text], images=[media.images], add_special_tokens=False, return_tensors="pt")
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a model's processor may raise anything for images that do not fit
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InvalidRequest(f"the model's processor rejected the images: {reason}", field="messages") from error
        batch = batch.to(dtype=self._dtype)
        token_ids: list[int] = batch.pop("input_ids")[0].tolist()
        return ImageInputs(token_ids, dict(batch))
