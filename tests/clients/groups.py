"""Which clients share an environment, what is installed there, and which files of checks run in it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Group:
    """Clients that can live together.

    Args:
        needs: what pip, or npm if ``node``, installs.
        files: the checks, run in this order.
        model: the bundled model is served for them, besides the toy.
        node: a ``node_modules`` folder; the checks themselves run in this project's own environment.
        env: more environment variables.
    """

    name: str
    needs: tuple[str, ...]
    files: tuple[str, ...]
    model: bool = False
    node: bool = False
    env: dict[str, str] = field(default_factory=dict)


GROUPS = (
    Group(
        "current",
        ("openai>=3,<4", "together>=3,<4", "cerebras-cloud-sdk>=1,<2", "fireworks-ai>=1,<2"),
        ("strict.py", "shapes.py", "moderation.py", "statuses.py", "slow_and_broken.py"),
    ),
    Group("together1", ("together==1.5.35",), ("together_1.py",)),
    Group("openai1", ("openai==1.109.1",), ("openai_1.py",)),
    Group("fireworks0", ("fireworks-ai==0.19.20",), ("fireworks_0.py",), env={"FIREWORKS_API_STRICT": "1"}),
    Group("lmeval", ("lm-eval[api]==0.4.13",), ("lm_eval_scores.py", "eval_command.py"), model=True),
    Group("litellm", ("litellm",), ("litellm_prefixes.py", "litellm_batches.py")),
    Group("langchain", ("langchain-openai",), ("langchain_llm.py",)),
    Group("llm", ("llm",), ("llm_command.py",)),
    Group("schemathesis", ("schemathesis>=4.32,<5",), ("openapi_fuzz.py",)),
    Group("vercel", ("ai", "@ai-sdk/openai-compatible"), ("vercel.py",), node=True),
)
