"""vLLM by itself, in a process of its own: ``own.py MODEL [ADAPTER]`` reads prompts as JSON and writes what vLLM makes of them.

For each prompt, token ids or a text with images, its tokens as vLLM has them, its greedy tokens and their log-probabilities, and the
log-probabilities of the prompt's tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MARK = "@ "
"""Begins the line that is the answer: vLLM prints there too."""


def by_itself(
    model: Path, prompts: Sequence[Sequence[int] | str], tokens: int, *adapter: Path, images: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """What it makes of prompts, without us.

    Args:
        images: of each prompt that is a text with vLLM's placeholders: files.
    """
    asked = json.dumps({"prompts": prompts, "tokens": tokens, "images": images})
    done = subprocess.run([sys.executable, __file__, model, *adapter], input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith(MARK)).removeprefix(MARK))
    return found


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    asked = json.load(sys.stdin)
    limits: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 8, "kv_cache_memory_bytes": 64 << 20}
    engine = LLM(sys.argv[1], dtype="float32", enforce_eager=True, enable_lora=len(sys.argv) > 2, **limits)
    lora = LoRARequest("own", 1, sys.argv[2]) if len(sys.argv) > 2 else None
    greedy = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False, logprobs=0)
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": one} for one in asked["prompts"]] if not asked["images"] else _seen(asked)
    made = [(one.prompt_token_ids, one.outputs[0]) for one in engine.generate(prompts, greedy, use_tqdm=False, lora_request=lora)]
    own = [[row[token].logprob for row, token in zip(one.logprobs, one.token_ids, strict=True)] for _, one in made]
    scores = []
    for one in engine.generate(prompts, scored, use_tqdm=False, lora_request=lora):
        pairs = zip(one.prompt_logprobs[1:], one.prompt_token_ids[1:], strict=True)
        scores.append([row[token].logprob for row, token in pairs])
    texts = [list(one.token_ids) for _, one in made]
    print(MARK + json.dumps({"prompts": [ids for ids, _ in made], "texts": texts, "logprobs": own, "scores": scores}), flush=True)
    engine.llm_engine.engine_core.shutdown()
    os._exit(0)  # its threads' destructors at the interpreter's end abort now and then ("terminate called without an active exception")


def _seen(asked: dict[str, Any]) -> list[dict[str, Any]]:
    from PIL import Image

    both = zip(asked["prompts"], asked["images"], strict=True)
    return [{"prompt": text, "multi_modal_data": {"image": [Image.open(file) for file in files]}} for text, files in both]


if __name__ == "__main__":
    main()
