"""Does a model think before it answers, and between which tags. Plain code over values."""

from __future__ import annotations

from collections.abc import Container

KNOWN = (
    ("<think>", "</think>"),  # DeepSeek R1, Qwen 3, GLM 4.5, SmolLM 3
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi VL
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss: a message of its own
)


def known_tags(template: str, tokens: Container[str]) -> tuple[str, str] | None:
    """The tags that the model was trained on, as far as its file tells: its chat template names them, or both are tokens of their own."""
    for start, end in KNOWN:
        if (start in template and end in template) or (start in tokens and end in tokens):
            return start, end
    return None
