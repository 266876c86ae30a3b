"""What a model of vLLM takes besides text."""

from __future__ import annotations

from dataclasses import dataclass

from vllm import LLMEngine
from vllm.model_executor.model_loader import get_model_cls

_AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class TakenMedia:
    """Whether a model takes images, and the rate of the samples of sounds in Hz, None for a model that takes no sounds.

    `sound_marks` are as in `Capabilities`.
    """

    images: bool = False
    sound_rate: int | None = None
    sound_marks: tuple[str, ...] = ()


def taken_media(engine: LLMEngine, max_sounds: int) -> TakenMedia:
    """Ask vLLM's processor, and its class of the model how it marks up to `max_sounds` sounds."""
    processor = engine.renderer.mm_processor
    if processor is None:
        return TakenMedia()
    limits = processor.info.allowed_mm_limits
    rate = processor.data_parser.audio_resampler.target_sr if limits.get(_AUDIO, 0) > 0 else None
    if rate is None:
        return TakenMedia(images=limits.get("image", 0) > 0)
    model = get_model_cls(engine.vllm_config.model_config)
    marks = (model.get_placeholder_str(_AUDIO, number) for number in range(1, 1 + min(limits[_AUDIO], max_sounds)))
    return TakenMedia(limits.get("image", 0) > 0, int(rate), tuple(mark for mark in marks if mark is not None))
