"""Tiny models that see images in ways of their own, of transformers' classes, and what their folders say of their processors."""

from __future__ import annotations

from typing import Any

EYE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
PIXELS = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 16, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}

WORDS = {
    "llava": ("<image>",),
    "mistral3": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "qwen2_5_vl": ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"),
}
"""A square cut out of an image; rows with a break after each; positions in the plane. The words that their vocabularies have for images,
first the one at an image's places."""

DOCUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "llava": {
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 32},
            "crop_size": {"height": 32, "width": 32},
        },
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "patch_size": 8,
            "image_token": "<image>",
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    },
    "mistral3": {
        "preprocessor_config.json": {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 64}, "patch_size": 8},
        "processor_config.json": {
            "processor_class": "PixtralProcessor",
            "patch_size": 8,
            "spatial_merge_size": 2,
            **dict(zip(("image_token", "image_break_token", "image_end_token"), WORDS["mistral3"], strict=True)),
        },
    },
    "qwen2_5_vl": {
        "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessor", **PIXELS},
        "video_preprocessor_config.json": {"video_processor_type": "Qwen2VLVideoProcessor", **PIXELS},
        "processor_config.json": {"processor_class": "Qwen2_5_VLProcessor"},
    },
}
"""What is in a folder beside config, weights and tokenizer."""


def model(name: str, text: dict[str, Any], image: int, *others: int) -> Any:
    """With weights that transformers draws.

    Args:
        text: of its language model's config.
        image, others: ids of the ``WORDS``.
    """
    import transformers

    if name == "llava":
        clip = transformers.CLIPVisionConfig(image_size=32, projection_dim=32, **EYE)
        own = {"image_token_id": image, "image_seq_length": 16, "vision_feature_layer": -1}
        config = transformers.LlavaConfig(vision_config=clip, text_config=transformers.LlamaConfig(**text), **own)
        return transformers.LlavaForConditionalGeneration(config)
    if name == "mistral3":
        pixtral = transformers.PixtralVisionConfig(image_size=64, head_dim=16, **EYE)
        own = {"image_token_index": image, "spatial_merge_size": 2, "vision_feature_layer": -1}
        mistral = transformers.MistralConfig(sliding_window=None, **text)
        return transformers.Mistral3ForConditionalGeneration(transformers.Mistral3Config(vision_config=pixtral, text_config=mistral, **own))
    start, end, video = others
    eye: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
    }
    eye |= {"out_hidden_size": text["hidden_size"], "fullatt_block_indexes": [1], "window_size": 56}
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
    ids = {"image_token_id": image, "video_token_id": video, "vision_start_token_id": start, "vision_end_token_id": end}
    inner = {**text, "rope_parameters": rope}
    return transformers.Qwen2_5_VLForConditionalGeneration(transformers.Qwen2_5_VLConfig(vision_config=eye, text_config=inner, **ids))
