"""vLLM by itself, in a process of its own: ``own.py MODEL [ADAPTER]`` reads prompts as JSON and writes what vLLM makes of them.

For each prompt its greedy tokens, and the log-probabilities of the prompt's tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MARK = "@ "
"""Begins the line that is the answer: vLLM prints there too."""


def by_itself(model: Path, ids: list[list[int]], tokens: int, *adapter: Path) -> dict[str, Any]:
    """What it makes of prompts, without us."""
    asked = json.dumps({"prompts": ids, "tokens": tokens})
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
    greedy = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": one} for one in asked["prompts"]]
    texts = [list(one.outputs[0].token_ids) for one in engine.generate(prompts, greedy, use_tqdm=False, lora_request=lora)]
    scores = []
    for one, ids in zip(engine.generate(prompts, scored, use_tqdm=False, lora_request=lora), asked["prompts"], strict=True):
        scores.append([row[token].logprob for row, token in zip(one.prompt_logprobs[1:], ids[1:], strict=True)])
    print(MARK + json.dumps({"texts": texts, "scores": scores}))


if __name__ == "__main__":
    main()
