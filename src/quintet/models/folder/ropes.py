"""Rotary position embeddings as config.json describes them -> GGUF's keys, and the divisors of frequencies that GGUF has as tensors.

What each kind computes is in transformers' ``modeling_rope_utils.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from quintet.models.families import FAMILIES
from quintet.models.folder.documents import Settings, is_real
from quintet.models.folder.kinds import Kind
from quintet.models.layout import ROPE_FREQS, ROPE_LONG, ROPE_SHORT
from quintet.models.reading import LOCAL_BASE

NONE = ("default", "none")


@dataclass(slots=True)
class Rotation:
    """What a folder's rotation comes to.

    Args:
        keys: GGUF's, below ``<architecture>.``.
        divisors: GGUF's name of a tensor -> what it would hold.
    """

    keys: dict[str, Any] = field(default_factory=dict)
    divisors: dict[str, tuple[float, ...]] = field(default_factory=dict)


def read_rotation(config: Settings, kind: Kind, head_dim: int, context: int) -> Rotation:
    """The rotation of a model.

    Args:
        context: ``max_position_embeddings``.

    Raises:
        ModelError: a key is wrong, or asks for something that is not implemented.
    """
    theta, partial = config.real("rope_theta", kind.defaults.get("rope_theta", 10000.0)), config.real("partial_rotary_factor", 1.0)
    local_theta = config.real("rope_local_base_freq", theta) if kind.local_rope else theta
    new = config.section("rope_parameters")
    rope = new or config.section("rope_scaling") or Settings(config.file, dict(kind.rope), {}, "rope_parameters.")
    if kind.local_rope and new:  # what it says outside its sections is heeded by nobody
        local = rope.section("sliding_attention")
        if local is not None:
            local_theta = local.real("rope_theta", local_theta)
            if (found := _type(local)) not in NONE:
                raise local.error("rope_type", "must be default in layers with a window; others are not implemented", found)
            _refuse_unasked(local)
        inner = rope.section("full_attention")
        _refuse_unasked(rope)
        rope = inner or Settings(config.file, {}, {}, "rope_parameters.full_attention.")
    made = _Reading(config, rope, kind, head_dim, context, theta, partial).read()
    if kind.local_rope:
        made.keys[LOCAL_BASE] = local_theta
    return made


def _type(rope: Settings) -> str:
    return rope.text("rope_type", rope.text("type", "default"))


def _refuse_unasked(rope: Settings) -> None:
    for key, value in rope.unasked().items():
        raise rope.error(key, "asks for something that is not implemented", value)


class _Reading:
    """One set of rope parameters."""

    def __init__(self, config: Settings, rope: Settings, kind: Kind, head_dim: int, context: int, theta: float, partial: float) -> None:
        self._rope, self._kind, self._context = rope, kind, context
        self._theta = rope.real("rope_theta", theta)
        self._partial = rope.real("partial_rotary_factor", partial)
        self._head_dim, self._dim = head_dim, int(head_dim * self._partial)
        # Phi 3 says outside what others say inside.
        own = config.integer("original_max_position_embeddings", context) if kind.architecture == "phi3" else context
        self._original = own if kind.architecture == "phi3" else rope.integer("original_max_position_embeddings", context)

    def read(self) -> Rotation:
        rope, made = self._rope, Rotation()
        if not 0 < self._partial <= 1 or self._dim % 2 or (self._partial != 1 and self._kind.architecture != "phi3"):
            raise rope.error("partial_rotary_factor", f"must be {self._partial_rule()}", self._partial)
        made.keys |= {"rope.freq_base": self._theta, "rope.dimension_count": self._dim}
        kinds = {"linear": self._linear, "yarn": self._yarn, "llama3": self._llama3, "longrope": self._long, "su": self._long}
        type_ = _type(rope)
        if self._kind.architecture == "phi3" and type_ == "yarn":
            type_ = "longrope"  # so did its first files call it
        if type_ not in kinds and type_ not in NONE:
            raise rope.error("rope_type", f"must be one of default, {', '.join(kinds)}; others are not implemented", type_)
        if type_ in kinds:
            kinds[type_](made)
        # Ministral 3's default has its context too, which says nothing.
        own = ("max_position_embeddings",) if self._kind.architecture == "mistral3" else ()
        rope.know("type", "finetuned", "original_max_position_embeddings", *own)
        _refuse_unasked(rope)
        return made

    def _partial_rule(self) -> str:
        if self._kind.architecture == "phi3":
            return f"above 0, at most 1, and leave an even number of the {self._head_dim} dimensions of a head"
        return "1 in this family"

    def _linear(self, made: Rotation) -> None:
        made.keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": self._rope.real("factor")}

    def _yarn(self, made: Rotation) -> None:
        rope = self._rope
        factor = rope.real("factor")
        if factor < 1:  # such a one shrinks the context, and transformers has a rule of its own for it
            raise rope.error("factor", "must be at least 1 for yarn", factor)
        by_factor = 1 + 0.1 * math.log(factor)
        truncate = FAMILIES[self._kind.architecture].truncate
        if rope.flag("truncate", True) is not truncate:
            raise rope.error("truncate", f"must be {str(truncate).lower()} in this family; another is not implemented", not truncate)
        scales = [self._scale(key) for key in ("mscale", "mscale_all_dim")]
        usual = by_factor
        if all(scales) and factor > 1:
            if self._kind.architecture == "mistral3" and scales[0] == 1.0 and "attention_factor" not in rope:  # which has a key for it
                made.keys["rope.scaling.yarn_log_multiplier"] = scales[1]
            else:
                above, below = (1 + 0.1 * scale * math.log(factor) for scale in scales)
                usual = above / below
        if self._kind.architecture == "mistral3" and (beta := self._scale("llama_4_scaling_beta")):
            made.keys["attention.temperature_scale"] = beta
        made.keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": factor,
            "rope.scaling.original_context_length": self._original,
            "rope.scaling.attn_factor": rope.real("attention_factor", usual) / by_factor,  # what YaRN itself gives is put to it later
            "rope.scaling.yarn_beta_fast": rope.real("beta_fast", 32.0),
            "rope.scaling.yarn_beta_slow": rope.real("beta_slow", 1.0),
        }

    def _scale(self, key: str) -> float:
        """What scales something; 0 = nothing does, whether the file says 0 or nothing, as transformers has it."""
        found = self._rope.get(key)
        return 0.0 if found is None or (is_real(found) and found == 0) else self._rope.real(key)

    def _llama3(self, made: Rotation) -> None:
        rope = self._rope
        if not FAMILIES[self._kind.architecture].freq_factors:
            raise rope.error("rope_type", "is not implemented for this family", "llama3")
        factor, low, high = rope.real("factor"), rope.real("low_freq_factor", 1.0), rope.real("high_freq_factor", 4.0)
        if high <= low:
            raise rope.error("high_freq_factor", f"must be above the low_freq_factor {low}", high)
        divisors = []
        for pair in range(self._dim // 2):
            turns = self._original / (2 * math.pi * self._theta ** (2 * pair / self._dim))  # within the context it was trained on
            if turns > high:
                divisors.append(1.0)
            elif turns < low:
                divisors.append(factor)
            else:
                smooth = (turns - low) / (high - low)
                divisors.append(1 / ((1 - smooth) / factor + smooth))
        made.divisors[ROPE_FREQS] = tuple(divisors)

    def _long(self, made: Rotation) -> None:
        rope = self._rope
        if not FAMILIES[self._kind.architecture].long_rope:
            raise rope.error("rope_type", "is not implemented for this family", "longrope")
        pairs = self._dim // 2
        made.divisors[ROPE_LONG] = tuple(rope.reals("long_factor", pairs))
        made.divisors[ROPE_SHORT] = tuple(rope.reals("short_factor", pairs))
        factor = rope.real("factor", self._context / self._original)
        usual = math.sqrt(1 + math.log(factor) / math.log(self._original)) if factor > 1 and self._original > 1 else 1.0
        made.keys |= {
            "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": self._original,
            "rope.scaling.attn_factor": rope.real("attention_factor", usual),
        }
