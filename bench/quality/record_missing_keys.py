"""Record what transformers takes a config.json for in which a key is missing, or null: the meaning that ours must find in it.

Needs transformers, which the project itself does not: run it in an environment of its own.

    pip install torch==2.13.0 transformers safetensors numpy
    python -m bench.quality.record_missing_keys

Each configuration is one of ``record_transformers``, written out in full, so that a default of the class is seen where it steps in.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from tests.reference.transformers_tiny import MISSING, models

SAYS_NOTHING = {"transformers_version", "dtype", "architectures", "id2label", "label2id", "problem_type", "return_dict"}
SAYS_NOTHING |= {"is_encoder_decoder", "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "use_cache"}
SAYS_NOTHING |= {"initializer_range", "_name_or_path"}
"""Keys that every configuration has, and nothing follows from."""
WINDOWED = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1, "layer_types": None}
"""Windows where they must be asked for."""


def configurations() -> dict[str, dict[str, Any]]:
    """What is recorded, by name."""
    found = {name: tiny.config for name, tiny in models().items()}
    for name in ("qwen2", "qwen3", "qwen3_moe", "smollm3"):
        found[f"{name} with windows"] = {**found[name], **WINDOWED}
    return found


def whole(config: dict[str, Any]) -> dict[str, Any]:
    """All that transformers makes of a configuration."""
    asked = copy.deepcopy({key: value for key, value in config.items() if key != "model_type"})
    made = json.loads(json.dumps(transformers.AutoConfig.for_model(config["model_type"], **asked).to_dict()))
    return {key: value for key, value in made.items() if key not in SAYS_NOTHING and not key.endswith(("_token_id", "dropout"))}


def paths(value: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        if key != "model_type":
            yield (*path, key)
            yield from paths(inner, (*path, key)) if isinstance(inner, dict) else ()


def changed(full: dict[str, Any], path: tuple[str, ...], null: bool) -> dict[str, Any] | None:
    """The keys that come out otherwise where one is missing, or null; ``None`` = transformers refuses such a file."""
    config = copy.deepcopy(full)
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    if null:
        inner[path[-1]] = None
    else:
        del inner[path[-1]]
    try:
        made = whole(config)
    except Exception:  # what it raises is of many kinds
        return None
    return {key: made.get(key) for key in {**full, **made} if made.get(key) != full.get(key)}


def main() -> None:
    transformers.logging.set_verbosity(50)
    entries = {}
    for name, config in configurations().items():
        full = whole(config)
        cases = {way: {".".join(path): changed(full, path, way == "null") for path in paths(full)} for way in ("missing", "null")}
        entries[name] = {
            "config": full,
            **{way: {key: one for key, one in found.items() if one is not None} for way, found in cases.items()},
        }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    Path(MISSING).write_text(f'{{"version": {json.dumps(transformers.__version__)},\n"models": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
