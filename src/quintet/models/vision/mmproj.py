"""mmproj files: an encoder and its projector in a GGUF file of their own, as llama.cpp's converter writes it.

Every key is understood, known to ask for nothing, or the reason to refuse the file, as for models (``models/reading.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from quintet.models.gguf import open_tensors
from quintet.models.metadata import Metadata
from quintet.models.vision.limits import check_sizes
from quintet.models.vision.spec import Colours, Projector, VisionFile, VisionSpec
from quintet.models.vision.tensors import Spelling, Stored, collect

ARCHITECTURE = "clip"
VISION = "clip.vision."

SIZES = {
    "image": ("image_size", 1 << 13),
    "patch": ("patch_size", 1 << 8),
    "hidden": ("embedding_length", 1 << 14),
    "heads": ("attention.head_count", 1 << 10),
    "ffn": ("feed_forward_length", 1 << 17),
    "layers": ("block_count", 1 << 9),
    "out": ("projection_dim", 1 << 20),
}
"""Of ``VisionSpec``: the key below ``VISION``, and the largest value."""
OTHERS = {
    "scale": "projector.scale_factor",
    "norm_eps": "attention.layer_norm_epsilon",
    "mean": "image_mean",
    "std": "image_std",
    "longest_edge": "preproc_image_size",
}
KEYS = {name: VISION + key for name, key in OTHERS.items()} | {name: VISION + key for name, (key, _) in SIZES.items()}
PROJECTOR = ("clip.projector_type", "clip.vision.projector_type")

NEUTRAL = {
    "clip.has_vision_encoder": (True,),
    "clip.has_audio_encoder": (False,),
    "clip.has_text_encoder": (False,),
    "clip.has_llava_projector": (False, True),
    "clip.use_gelu": (True,),
    "clip.use_silu": (False,),
}
"""Keys that ask for something else than what is computed, and the values that do not."""
SCALES = {"idefics3": 3, "gemma3": 4}
"""What a missing key means to llama.cpp."""
TILES = 4
"""Tiles of the longest edge, where the file does not say it: what Idefics3 and SmolVLM were trained with."""

GGUF = Spelling(
    {
        "patch": "v.patch_embd.weight",
        "patch_bias": "v.patch_embd.bias",
        "positions": "v.position_embd.weight",
        "post_norm": "v.post_ln.weight",
        "post_norm_bias": "v.post_ln.bias",
        "pooled_norm": "mm.soft_emb_norm.weight",
        "projection": "mm.model.fc.weight",
    },
    "v.blk.",
    {
        "attn_norm": "ln1",
        "ffn_norm": "ln2",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_out",
        "up": "ffn_up",
        "down": "ffn_down",
    },
)


def open_mmproj(path: Path, text_hidden: int) -> VisionFile:
    """Open an mmproj file.

    Args:
        text_hidden: width of the embedding of the model that it is for.

    Raises:
        ModelError: not readable, damaged, of another model, or asking for something this server does not implement.
    """
    opened = open_tensors(path)
    spec = read_spec(opened.metadata, text_hidden)
    stored = {name: Stored(info.type, info.shape[::-1], opened.read(info)) for name, info in opened.infos.items()}
    name = opened.metadata.file
    return VisionFile(name, spec, collect(name, spec, stored, _spelling(spec, stored)), opened.forget)


def read_spec(meta: Metadata, text_hidden: int) -> VisionSpec:
    """What its keys say."""
    if meta.text("general.architecture") != ARCHITECTURE:
        raise meta.error("general.architecture", f"must be {ARCHITECTURE} in an mmproj file", meta.get("general.architecture"))
    key = next((key for key in PROJECTOR if key in meta), PROJECTOR[0])
    projector: Projector | None = next((kind for kind in get_args(Projector) if kind == meta.text(key)), None)
    if projector is None:
        raise meta.error(key, f"must be one of the supported {', '.join(get_args(Projector))}", meta.get(key))
    for name in meta:
        value = meta.get(name)
        if name.startswith("clip.") and name not in KEYS.values() and name not in PROJECTOR and value not in NEUTRAL.get(name, ()):
            raise meta.error(name, "asks for something that is not implemented", value)
    if not meta.flag("clip.use_gelu", False):
        raise meta.error("clip.use_gelu", "must be true; other activations are not implemented", False)
    sizes = {name: meta.integer(VISION + key, high=high) for name, (key, high) in SIZES.items()}
    spec = VisionSpec(
        projector,
        **sizes,
        scale=meta.integer(KEYS["scale"], SCALES[projector], high=sizes["image"]),
        norm_eps=meta.real(KEYS["norm_eps"]),
        mean=_colours(meta, KEYS["mean"]),
        std=_colours(meta, KEYS["std"]),
        longest_edge=meta.integer(KEYS["longest_edge"], TILES * sizes["image"], high=1 << 16),
    )
    return check_sizes(spec, text_hidden, lambda name, rule, got: meta.error(KEYS[name], rule, got))


def _colours(meta: Metadata, key: str) -> Colours:
    found = meta.numbers(key, 3)
    if found is None:
        raise meta.error(key, "is missing")
    red, green, blue = (float(colour) for colour in found)
    if not all(map(math.isfinite, (red, green, blue))):
        raise meta.error(key, "must be finite numbers", found)
    return red, green, blue


def _spelling(spec: VisionSpec, stored: Mapping[str, Stored]) -> Spelling:
    """Files of an older converter have the feed-forward part's matrices under each other's names; as in llama.cpp the shape tells."""
    spelling = GGUF
    if spec.projector == "gemma3":
        spelling = replace(spelling, top={**spelling.top, "projection": "mm.input_projection.weight"})
    down = stored.get("v.blk.0.ffn_down.weight")
    if down is not None and down.shape[-1] == spec.hidden:
        spelling = replace(spelling, parts={**spelling.parts, "up": "ffn_down", "down": "ffn_up"})
    return spelling
