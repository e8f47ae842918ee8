"""A tiny SmolVLM, or Gemma 3, with random weights as a folder that can be served: its vocabulary has the words of one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.reference.as_gguf import write_gguf
from tests.reference.folders import Source, write_tokenizer
from tests.reference.transformers_vision import IMAGE, models

WORDS = {
    "idefics3": ("<image>", "<fake_token_around_image>", "<global-img>"),
    "gemma3": ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
}


def write_seeing(within: Path, name: str = "idefics3") -> Path:
    """Write the model below ``within`` and return its folder."""
    tiny, words = models()[name], dict(enumerate(WORDS[name], IMAGE))
    folder = tiny.write(within)
    source = write_gguf(within / "tokens.gguf", tiny.text())
    write_tokenizer(folder, Source(source))
    source.unlink()
    document = json.loads((folder / "tokenizer.json").read_text())
    plain = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = 1 + max(one["id"] for one in document["added_tokens"])
    document["added_tokens"] += [{"id": at, "content": words.get(at, f"<{at}>"), **plain} for at in range(first, IMAGE + len(words))]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder
