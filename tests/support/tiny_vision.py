"""Models that see, and one that hears, with random weights, the small model's tokenizer and the library's real processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AddedToken, AutoTokenizer, BatchFeature

# Large enough that the image and the token positions affect the output.
RANGE = 0.3

VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
    "initializer_range": RANGE,
}

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _tokenizer(source: Path, *tokens: str) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    return tokenizer


def _text(vocab_size: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,  # the minimum for vLLM's CPU attention
        "max_position_embeddings": 512,
        "initializer_range": RANGE,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        **more,
    }


def save_idefics3(source: Path, path: Path) -> None:
    """SmolVLM's architecture: an image is encoded whole and in tiles, each between its own markers."""
    from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    parts = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    marks = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *parts)
    tokenizer = _tokenizer(source, *marks)
    config = transformers.Idefics3Config(
        text_config={"model_type": "llama"} | _text(len(tokenizer)),
        vision_config=Idefics3VisionConfig(**VISION),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=2,
    )
    processor = transformers.Idefics3Processor(
        image_processor=Idefics3ImageProcessorPil(size={"longest_edge": 112}, max_image_size={"longest_edge": 56}),
        tokenizer=tokenizer,
        image_seq_len=4,
        chat_template=CHATML.replace("IMAGE", "<image>"),
    )
    _save(transformers.Idefics3ForConditionalGeneration(config), processor, path)  # type: ignore[no-untyped-call]


class Qwen2VLImages:
    """The image part of `Qwen2VLProcessor`. The full class needs torchvision, for videos."""

    def __init__(self, source: Path) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.tokenizer = _tokenizer(source, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
        self.image_processor = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=16 * 28 * 28)

    def __call__(self, *, text: list[str], images: list[list[Any]], **_options: Any) -> BatchFeature:
        inputs = self.image_processor(images[0], return_tensors="pt")
        (prompt,) = text
        for grid in inputs["image_grid_thw"]:
            prompt = prompt.replace("<|image_pad|>", "<|pad|>" * (int(grid.prod()) // 4), 1)
        tokens = self.tokenizer(
            prompt.replace("<|pad|>", "<|image_pad|>"), return_tensors="pt", add_special_tokens=False
        )
        kinds = ["<|image_pad|>", "<|video_pad|>"]
        image, video = (tokens["input_ids"] == self.tokenizer.convert_tokens_to_ids(kind) for kind in kinds)
        return BatchFeature({**tokens, **inputs, "mm_token_type_ids": image.int() + 2 * video.int()})


def qwen2_vl(processor: Qwen2VLImages) -> Any:
    """A model with three-dimensional positions, whose offset from the number of tokens depends on previous images."""
    vocabulary = processor.tokenizer
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
    config = transformers.Qwen2VLConfig(
        text_config=_text(len(vocabulary), rope_parameters=rope),
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "patch_size": 14,
            "mlp_ratio": 2,
        },
        **{name: vocabulary.convert_tokens_to_ids(token) for name, token in names.items()},
    )
    return _random(transformers.Qwen2VLForConditionalGeneration(config)).eval()  # type: ignore[no-untyped-call]


def save_llava(source: Path, path: Path) -> None:
    """An older model whose chat template supports text only, so an image is a special token in the text."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = _tokenizer(source, "<image>")
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama"} | _text(len(tokenizer)),
        vision_config=transformers.CLIPVisionConfig(projection_dim=32, **VISION),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    processor = transformers.LlavaProcessor(  # type: ignore[no-untyped-call]
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=(
            "{% for message in messages %}{{ message['role'].upper() }}: {{ message['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
        ),
    )
    _save(transformers.LlavaForConditionalGeneration(config), processor, path)


def save_qwen2_audio(source: Path, path: Path) -> None:
    """Qwen2-Audio's architecture, which hears thirty seconds. Its template reads parts, as the real one's does."""
    tokenizer = _tokenizer(source, "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
    config = transformers.Qwen2AudioConfig(
        text_config={"model_type": "qwen2"} | _text(len(tokenizer), max_position_embeddings=1024),
        audio_config={
            "num_mel_bins": 16,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "d_model": 32,
            "max_source_positions": 1500,
        },
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    processor = transformers.Qwen2AudioProcessor(  # type: ignore[no-untyped-call]
        feature_extractor=transformers.WhisperFeatureExtractor(feature_size=16),  # type: ignore[no-untyped-call]
        tokenizer=tokenizer,
        chat_template=CHATML.replace("'image'", "'audio'").replace("IMAGE", "<|audio_bos|><|AUDIO|><|audio_eos|>"),
    )
    _save(transformers.Qwen2AudioForConditionalGeneration(config), processor, path)
    file = path / "model.safetensors"
    weights = load_file(file)  # the library doubles a part of the names, which the real model does not
    save_file({name.replace("model.model.", "model."): weights[name] for name in weights}, file, {"format": "pt"})


def _save(model: Any, processor: Any, path: Path) -> None:
    _random(model).save_pretrained(path)
    processor.save_pretrained(path)


def _random(model: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=RANGE)
    return model


MODELS = {"idefics3": save_idefics3, "llava": save_llava, "qwen2_audio": save_qwen2_audio}
