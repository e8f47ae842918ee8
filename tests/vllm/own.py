"""vLLM by itself, in a process of its own: ``own.py MODEL`` reads prompts as JSON and writes what vLLM makes of them.

For each prompt its greedy tokens, and the log-probabilities of the prompt's tokens.
"""

from __future__ import annotations

import json
import sys

MARK = "@ "
"""Begins the line that is the answer: vLLM prints there too."""


def main() -> None:
    from vllm import LLM, SamplingParams

    asked = json.load(sys.stdin)
    engine = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=8, kv_cache_memory_bytes=64 << 20)
    greedy = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": one} for one in asked["prompts"]]
    texts = [list(one.outputs[0].token_ids) for one in engine.generate(prompts, greedy, use_tqdm=False)]
    scores = []
    for one, ids in zip(engine.generate(prompts, scored, use_tqdm=False), asked["prompts"], strict=True):
        scores.append([row[token].logprob for row, token in zip(one.prompt_logprobs[1:], ids[1:], strict=True)])
    print(MARK + json.dumps({"texts": texts, "scores": scores}))


if __name__ == "__main__":
    main()
