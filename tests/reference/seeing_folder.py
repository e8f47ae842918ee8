"""A tiny SmolVLM with random weights as a folder that can be served: its vocabulary has the words of one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.reference.as_gguf import write_gguf
from tests.reference.folders import Source, write_tokenizer
from tests.reference.transformers_vision import IMAGE, models

WORDS = {IMAGE: "<image>", IMAGE + 1: "<fake_token_around_image>", IMAGE + 2: "<global-img>"}


def write_seeing(within: Path) -> Path:
    """Write the model below ``within`` and return its folder."""
    tiny = models()["idefics3"]
    folder = tiny.write(within)
    source = write_gguf(within / "tokens.gguf", tiny.text())
    write_tokenizer(folder, Source(source))
    source.unlink()
    document = json.loads((folder / "tokenizer.json").read_text())
    plain = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = 1 + max(one["id"] for one in document["added_tokens"])
    document["added_tokens"] += [{"id": at, "content": WORDS.get(at, f"<{at}>"), **plain} for at in range(first, IMAGE + len(WORDS))]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder
