"""``quintet run``: one completion, streamed to the terminal, through the same service and engine as the server."""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from dataclasses import dataclass

import uvloop

from quintet.cli import engines, vllm
from quintet.cli.console import ConsoleReport, OptionError
from quintet.cli.early import INTERRUPTED
from quintet.cli.interrupt import end_within, on_interrupt, unless
from quintet.cli.loading import ready
from quintet.cli.plans import Plan
from quintet.errors import EngineFailed, counted, shorten
from quintet.events import ChoiceDelta, Failed, Usage
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.images.reader import ImageReader
from quintet.models import store
from quintet.request import CompletionRequest, Sampling, StopRules
from quintet.service.job import Job
from quintet.service.service import Service

DEFAULT_TOKENS = 128
_CLOSE_S = 1.0
_TELLING_S = 0.05
"""Tokens that come within so little came together, and have no speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to generate.

    Args:
        max_tokens: ``None`` = ``DEFAULT_TOKENS``, or what the prompt leaves of the context if that is less.
    """

    prompt: str
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]


@dataclass(slots=True)
class Clock:
    """Seconds of ``time.perf_counter`` at which things happened; 0 = not yet."""

    start: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def text(self) -> None:
        """Some text came."""
        self.last = time.perf_counter()
        self.first = self.first or self.last


def model_and_prompt(words: list[str]) -> tuple[str, str]:
    """Tell model and prompt apart by their form alone; a missing prompt is read from standard input.

    Raises:
        OptionError: more than two arguments, no prompt and nobody to ask, or one on standard input that is no text.
    """
    if len(words) > 2:
        raise OptionError(f"run takes a model and a prompt, got {len(words)} arguments; put the prompt in quotes.")
    if len(words) == 2:
        return words[0], words[1]
    if words and not store.is_reference(words[0]):
        return "smollm2", words[0]
    if sys.stdin.isatty():
        raise OptionError('give a prompt: quintet run [MODEL] "The sky is", or pipe one in.')
    try:
        return words[0] if words else "smollm2", sys.stdin.read()
    except UnicodeDecodeError:
        raise OptionError("the prompt must be UTF-8, in a locale of UTF-8.") from None


def draw_seed() -> int:
    """A seed nobody asked for, short enough to type again."""
    return secrets.randbelow(2**32)


def check(options: RunOptions) -> None:
    """What the option parser lets through.

    Raises:
        OptionError: a value outside its range (NaN included), or a text that is none.
    """
    for name, text in (("the prompt", options.prompt), *(("--stop", stop) for stop in options.stop)):
        try:
            text.encode()
        except UnicodeEncodeError:  # bytes that Python could not decode are half surrogate pairs
            raise OptionError(f"{name} must be UTF-8, in a locale of UTF-8, got {shorten(text)}.") from None
    if not 0 <= options.temperature <= 2:
        raise OptionError(f"--temperature must be from 0 to 2, got {options.temperature}.")
    if not 0 < options.top_p <= 1:
        raise OptionError(f"--top-p must be above 0 and at most 1, got {options.top_p}.")
    if "" in options.stop:
        raise OptionError("--stop must not be empty.")


def run(engine: engines.EngineOptions, options: RunOptions) -> int:
    """Generate and print; the exit code.

    Raises:
        QuintetError: bad options, no model, a prompt that does not fit; one clear line.
    """
    check(options)
    with ConsoleReport() as report:
        plan = engines.plan(engine, report)
    vllm.require_use(engine.given, {plan.kind})
    return uvloop.run(_run(plan, options))


async def _run(plan: Plan, options: RunOptions) -> int:
    interrupted = on_interrupt()
    backend = plan.start()
    guides, executor = GuideCheck(), FairExecutor()
    preparer = plan.preparer(backend, guides, executor, ImageReader(executor))
    try:
        if not await unless(interrupted, ready(backend, plan.name)):
            return INTERRUPTED
        job = await Service(backend, preparer, time.perf_counter).prepare(_request(plan.name, options))
        clock = Clock(time.perf_counter())
        finished = await unless(interrupted, _print(job, clock))
        sys.stderr.write(summary(job.usage, clock, options))
        return 0 if finished else INTERRUPTED
    finally:
        await end_within(_CLOSE_S, INTERRUPTED, backend.close(), guides.close())


async def _print(job: Job, clock: Clock) -> None:
    """Write the text as it comes.

    Raises:
        EngineFailed: the engine broke off.
    """
    try:
        async with contextlib.aclosing(job.events()) as batches:
            async for batch in batches:
                for event in batch:
                    if isinstance(event, Failed):
                        raise EngineFailed(event.message)
                    if isinstance(event, ChoiceDelta):
                        clock.text()
                        sys.stdout.write(event.text)
                sys.stdout.flush()
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()


def _request(model: str, options: RunOptions) -> CompletionRequest:
    return CompletionRequest(
        model=model,
        prompts=(options.prompt,),
        max_tokens=DEFAULT_TOKENS if options.max_tokens is None else options.max_tokens,
        n=1,
        echo=False,
        logprobs=None,
        sampling=Sampling(options.temperature, options.top_p, options.seed),
        stop=StopRules(options.stop),
        stream=True,
        include_usage=True,
        user="",
        truncate=options.max_tokens is None,
        spelled=(("max_tokens", "--max-tokens"),),
    )


def summary(usage: Usage, clock: Clock, options: RunOptions) -> str:
    """The last line: tokens, time to the first, speed of the others if it can be told, and what repeats a text that was drawn."""
    parts = [f"{counted(usage.prompt_tokens, 'prompt token')}, {usage.completion_tokens} generated"]
    if clock.first:
        parts.append(f"first after {(clock.first - clock.start) * 1000:.0f} ms")
    if usage.completion_tokens > 1 and clock.last - clock.first >= _TELLING_S:
        parts.append(f"then {(usage.completion_tokens - 1) / (clock.last - clock.first):.1f} tokens/s")
    if options.temperature > 0:
        parts.append(f"seed {options.seed}")
    return ", ".join(parts) + "\n"
