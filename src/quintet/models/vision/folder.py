"""The encoder of a Hugging Face folder: its part of config.json, what its processor does to pixels, and its tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quintet.errors import ModelError
from quintet.models.files import Map
from quintet.models.folder.config import MEANINGLESS, NEUTRAL, refuse_unasked
from quintet.models.folder.documents import Settings, is_real, read_document
from quintet.models.folder.files import CONFIG, PREPROCESSOR, PROCESSOR, weights
from quintet.models.folder.kinds import KINDS
from quintet.models.folder.names import one_more
from quintet.models.folder.opening import MIN_SIZE, stored_tensors
from quintet.models.folder.safetensors import StoredTensor
from quintet.models.opened import forgetting
from quintet.models.vision.limits import check_sizes
from quintet.models.vision.spec import Colours, Projector, VisionFile, VisionSpec
from quintet.models.vision.tensors import Spelling, Stored, collect

SECTION = "vision_config"
TILES = 4
"""Tiles of the longest edge, where no file says it."""
HALF = (0.5, 0.5, 0.5)
"""Mean and deviation where no file says them: SigLIP's."""

_LAYER = {
    "attn_norm": "layer_norm1",
    "ffn_norm": "layer_norm2",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_TOP = {
    "patch": "embeddings.patch_embedding.weight",
    "patch_bias": "embeddings.patch_embedding.bias",
    "positions": "embeddings.position_embedding.weight",
    "post_norm": "post_layernorm.weight",
    "post_norm_bias": "post_layernorm.bias",
}


@dataclass(frozen=True, slots=True)
class Seeing:
    """A ``model_type`` that sees.

    Args:
        defaults: what a missing key of ``SECTION`` means.
        encoders: what the names of the encoder's tensors may begin with; the first that fits counts.
        projection: ends of the names of the projector's tensors, by our names.
        does: what is done to pixels here, by the names of a processor's settings; a file may say nothing else.
        head: what names of tensors begin with, below the encoder's, that nothing here uses.
    """

    projector: Projector
    defaults: Mapping[str, Any]
    encoders: tuple[str, ...]
    projection: Mapping[str, str]
    does: Mapping[str, Any]
    head: str = "head."


_DOES: Mapping[str, Any] = {"do_resize": True, "do_rescale": True, "do_normalize": True}
_IDEFICS3 = Seeing(
    "idefics3",
    {
        "hidden_size": 1152,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 32,
    },
    ("model.vision_model.",),
    {"projection": "modality_projection.proj.weight"},
    {**_DOES, "do_image_splitting": True, "resample": 1},  # Pillow's number of Lanczos
)
SEEING: Mapping[str, Seeing] = {
    "idefics3": _IDEFICS3,
    "smolvlm": _IDEFICS3,
    "gemma3": Seeing(
        "gemma3",
        {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 224,
            "patch_size": 16,
        },
        tuple(f"{outer}vision_tower.{inner}" for outer in ("", "model.") for inner in ("vision_model.", "")),
        {"projection": "mm_input_projection_weight", "pooled_norm": "mm_soft_emb_norm.weight"},
        {**_DOES, "do_pan_and_scan": False, "resample": 2},  # of bilinear
    ),
}
KEYS = {
    "image": "image_size",
    "patch": "patch_size",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "layers": "num_hidden_layers",
}
LARGEST = {"image": 1 << 13, "patch": 1 << 8, "hidden": 1 << 14, "heads": 1 << 10, "ffn": 1 << 17, "layers": 1 << 9}
_DUMPED = frozenset(
    {
        *("bad_words_ids", "begin_suppress_tokens", "cross_attention_hidden_size", "diversity_penalty", "early_stopping", "epsilon_cutoff"),
        *("encoder_no_repeat_ngram_size", "eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id"),
        *("length_penalty", "no_repeat_ngram_size", "num_beam_groups", "num_return_sequences", "output_scores", "penalty_alpha"),
        *("remove_invalid_values", "return_dict_in_generate", "suppress_tokens", "tf_legacy_loss", "tie_encoder_decoder", "typical_p"),
    }
)
"""Keys of generating text, which older versions of transformers wrote into every part of a file."""
_OF_ENCODER = (
    MEANINGLESS
    | _DUMPED
    | {
        *("max_image_size", "size"),  # the processor's, which its own file says
        *("vision_use_head", "tie_word_embeddings", "use_base_siglip"),  # of parts that there are none of here
        *("initializer_factor", "num_image_tokens", "projection_dim", "projector_hidden_act"),
    }
)
"""Keys that say nothing about how an encoder computes."""
_OF_PROCESSOR = frozenset(
    {
        *("image_processor_type", "feature_extractor_type", "processor_class", "auto_map", "transformers_version"),
        *("image_seq_length", "image_seq_len", "image_token", "chat_template"),  # as config.json and the tokenizer have it
        *("do_convert_rgb", "do_pad", "pad_size", "return_row_col_info"),  # all are RGB, and there is one image at a time
        *("data_format", "input_data_format", "return_tensors", "device", "disable_grouping", "default_to_square", "size_divisor"),
        *("crop_size", "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate"),  # if it did that
        *("video_sampling", "video_size", "video_metadata", "video_processor_type", "return_metadata"),
        *("fps", "num_frames", "max_frames", "do_sample_frames"),  # of videos
    }
)
"""Keys that say nothing of what becomes of an image."""
_UNDONE: Mapping[str, tuple[Any, ...]] = dict.fromkeys(("do_center_crop", "do_pan_and_scan"), (False,))
"""What a processor may be told not to do."""


def sees(folder: Path) -> bool:
    """The folder's config.json is of a model that sees images.

    Raises:
        ModelError: it cannot be read.
    """
    document = read_document(folder / CONFIG)
    return document.get("model_type") in SEEING and isinstance(document.get(SECTION), dict)


def open_seeing(folder: Path, text_hidden: int) -> VisionFile:
    """Open the encoder of a folder.

    Args:
        text_hidden: width of the embedding of the folder's language model.

    Raises:
        ModelError: a file is missing, not readable or damaged, or asks for something this server does not implement.
    """
    document = read_document(folder / CONFIG)
    kind = SEEING.get(str(document.get("model_type")))
    if kind is None:
        raise ModelError(f"{CONFIG}: 'model_type' must be one of {', '.join(SEEING)} for a model that sees images.")
    paths = weights(folder)
    maps = [Map(path, MIN_SIZE) for path in paths]
    stored = stored_tensors(paths, maps)
    spec = _spec(Settings(CONFIG, document, {}), _processor(folder), kind, text_hidden)
    skipped = KINDS[document["model_type"]].skipped
    mine = {name: tensor for name, tensor in stored.items() if name.startswith(skipped)}
    prefix = next((one for one in kind.encoders if one + _TOP["patch"] in mine), kind.encoders[0])
    mine = {name: tensor for name, tensor in mine.items() if not name.startswith(prefix + kind.head)}
    projection = {ours: next((name for name in mine if name.endswith(theirs)), theirs) for ours, theirs in kind.projection.items()}
    spelling = Spelling({**{ours: prefix + theirs for ours, theirs in _TOP.items()}, **projection}, f"{prefix}encoder.layers.", _LAYER)
    tensors = collect(CONFIG, spec, {name: _stored(tensor) for name, tensor in mine.items()}, spelling)
    if (norm := tensors.get("pooled_norm")) is not None:
        tensors["pooled_norm"] = replace(norm, type="F32", pieces=one_more(mine[projection["pooled_norm"]]).pieces)
    return VisionFile(CONFIG, spec, tensors, forgetting(maps))


def _stored(tensor: StoredTensor) -> Stored:
    return Stored(tensor.type, tensor.shape, tensor.data)


def _processor(folder: Path) -> Settings:
    """What is done to pixels, empty if no file says it. A part of the file for all that a processor does comes before the file of its own,
    as in transformers: newer versions write the former, and an older one's file may be left beside it."""
    if (folder / PROCESSOR).is_file():
        nested = Settings(PROCESSOR, read_document(folder / PROCESSOR), {}).section("image_processor")
        if nested is not None:
            return nested
    return Settings(PREPROCESSOR, read_document(folder / PREPROCESSOR) if (folder / PREPROCESSOR).is_file() else {}, {})


def _spec(whole: Settings, processor: Settings, kind: Seeing, text_hidden: int) -> VisionSpec:
    config = whole.section(SECTION, dict(kind.defaults)) or Settings(CONFIG, {}, dict(kind.defaults), f"{SECTION}.")
    sizes = {name: config.integer(key, high=LARGEST[name]) for name, key in KEYS.items()}
    if (found := config.integer("num_channels", 3)) != 3:
        raise config.error("num_channels", "must be 3", found)
    if (activation := config.text("hidden_act", "gelu_pytorch_tanh")) != "gelu_pytorch_tanh":
        raise config.error("hidden_act", "must be gelu_pytorch_tanh; others are not implemented", activation)
    edge = TILES * sizes["image"]
    if kind.projector == "idefics3":
        scale = whole.integer("scale_factor", 2)
        edge = _longest_edge(processor, edge)
    else:
        tokens = whole.integer("mm_tokens_per_image", 256)
        side = sizes["image"] // sizes["patch"]
        if math.isqrt(tokens) ** 2 != tokens or not side or side % math.isqrt(tokens):
            raise whole.error("mm_tokens_per_image", f"must be the square of a divisor of the {side} patches of an image's side", tokens)
        scale = side // math.isqrt(tokens)
    _require_implemented(processor, kind, sizes["image"])
    mean, std = (_colours(processor, key) for key in ("image_mean", "image_std"))
    spec = VisionSpec(
        kind.projector,
        **sizes,
        scale=scale,
        out=text_hidden,
        norm_eps=config.real("layer_norm_eps", 1e-6),
        mean=mean,
        std=std,
        longest_edge=edge,
    )
    refuse_unasked(config, NEUTRAL, _OF_ENCODER)
    refuse_unasked(processor, _UNDONE, _OF_PROCESSOR)
    return check_sizes(spec, text_hidden, lambda name, rule, got: config.error(KEYS.get(name, name), rule, got))


def _longest_edge(processor: Settings, usual: int) -> int:
    """Beside it other keys of a size say nothing; without it they say another."""
    size = processor.section("size")
    if size is None:
        return usual
    edge = size.integer("longest_edge", usual, high=1 << 16)
    if "longest_edge" not in size:
        refuse_unasked(size, {}, frozenset())
    return edge


def _require_implemented(processor: Settings, kind: Seeing, image: int) -> None:
    """Nothing if what is done to pixels here is what the folder's processor does; what its file leaves out is the type's own."""
    for key, done in kind.does.items():
        if (found := processor.get(key)) is not None and found != done:
            raise processor.error(key, f"must be {json.dumps(done)}; others are not implemented", found)
    if not math.isclose(processor.real("rescale_factor", 1 / 255), 1 / 255, rel_tol=1e-6):
        raise processor.error("rescale_factor", "must be 1/255; others are not implemented", processor.get("rescale_factor"))
    edges = {"max_image_size": ("longest_edge",)} if kind.projector == "idefics3" else {"size": ("height", "width")}
    for name, keys in edges.items():
        if (section := processor.section(name)) is None:
            continue
        for key in keys:
            if (found := section.get(key)) is not None and found != image:
                raise section.error(key, f"must be {image}, the edge of a tile, which is the encoder's {KEYS['image']}", found)
        refuse_unasked(section, {}, frozenset())


def _colours(processor: Settings, key: str) -> Colours:
    found = processor.get(key)
    if found is None:
        return HALF
    if not isinstance(found, list) or len(found) != 3 or not all(is_real(one) for one in found):
        raise processor.error(key, "must be a list of three finite numbers", found)
    red, green, blue = (float(one) for one in found)
    return red, green, blue
