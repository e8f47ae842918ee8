"""What a request means where its client says nothing but a prompt ``a``."""

from __future__ import annotations

from quintet.request import CompletionRequest, Sampling, StopRules

MINIMAL = CompletionRequest(
    model="",
    prompts=("a",),
    max_tokens=16,
    n=1,
    echo=False,
    logprobs=None,
    sampling=Sampling(temperature=1.0, top_p=1.0, seed=7),
    stop=StopRules(()),
    stream=False,
    include_usage=False,
    user="",
)
"""As OpenAI's page has it; the other dialects differ where their tests say so. The seed is the fresh one."""
