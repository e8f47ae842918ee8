"""What the server counts and logs: Prometheus metrics under vLLM's names, where we measure the same, and one log line per request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence

from quintet.backends.base import BATCH_TOKENS, Health, Pages
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, Usage
from quintet.metrics import Counter, Gauge, Histogram, Metric, render
from quintet.request import CompletionRequest

ACCESS = logging.getLogger("quintet.access")
"""One JSON object per request, at INFO. Never a prompt, a text, a key, a path or anything else that a client may write freely."""

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_CHOICES = (1, 2, 5, 10, 20, 50, 100)

# vLLM counts end-of-sequence tokens and stop strings as one.
_REASON = {Finish.EOS: "stop", Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORT: "abort", Finish.ERROR: "error"}


class Telemetry:
    """All metrics of a server.

    Args:
        model: the public model name.
        clock: seconds, monotonic.
    """

    def __init__(self, model: str, clock: Callable[[], float]) -> None:
        fixed = {"model_name": model, "engine": "0"}
        self.clock = clock
        self._engine = _EngineMetrics(fixed)
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens of ended requests.", fixed=fixed)
        self.generation_tokens = Counter("vllm:generation_tokens", "Tokens generated for ended requests.", fixed=fixed)
        self.cached = Counter("vllm:prompt_tokens_cached", "Prompt tokens of ended requests that were not computed for them.", fixed=fixed)
        self.success = Counter("vllm:request_success", "Choices by why they ended.", ("finished_reason",), fixed)
        self.first = Histogram("vllm:time_to_first_token_seconds", "From arrival to the first text.", _TTFT, fixed=fixed)
        self.gap = Histogram("vllm:inter_token_latency_seconds", "Between the outputs of a request.", _GAP, fixed=fixed)
        self.latency = Histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", _LATENCY, fixed=fixed)
        self.queue = Histogram("vllm:request_queue_time_seconds", "Waiting for the first step.", _LATENCY, fixed=fixed)
        self.prefill = Histogram("vllm:request_prefill_time_seconds", "From there to the first token.", _LATENCY, fixed=fixed)
        self.decode = Histogram("vllm:request_decode_time_seconds", "From there to the last token.", _LATENCY, fixed=fixed)
        self.prompt = Histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS, fixed=fixed)
        self.generation = Histogram("vllm:request_generation_tokens", "Generated tokens of a request.", _TOKENS, fixed=fixed)
        self.n = Histogram("vllm:request_params_n", "n of a request.", _CHOICES, fixed=fixed)
        self.max_tokens = Histogram("vllm:request_params_max_tokens", "max_tokens of a request that gives it.", _TOKENS, fixed=fixed)
        self.http = Counter("http_requests", "Answers.", ("method", "handler", "status"))
        self.seconds = Histogram("http_request_duration_seconds", "From arrival to the end of the answer.", _LATENCY, ("handler",))

    def scrape(self, health: Health) -> bytes:
        """The text for Prometheus."""
        metrics = [*self._engine.of(health), self.prompt_tokens, self.cached, self.generation_tokens, self.success, self.first, self.gap]
        metrics += [self.latency, self.queue, self.prefill, self.decode, self.prompt, self.generation, self.n, self.max_tokens]
        return render([*metrics, self.http, self.seconds]).encode()

    def answered(self, method: str, handler: str, status: int, seconds: float) -> None:
        """Count an answer; the labels are words of ours, never the client's."""
        self.http.add(labels=(method, handler, str(status)))
        self.seconds.observe(seconds, (handler,))


class _EngineMetrics:
    """What the engine counts itself, also of requests that have not ended."""

    def __init__(self, fixed: Mapping[str, str]) -> None:
        self._fixed = fixed
        self._running = Gauge("vllm:num_requests_running", "Sequences in the batch.", fixed=fixed)
        self._waiting = Gauge("vllm:num_requests_waiting", "Sequences in the queue.", fixed=fixed)
        self._usage = Gauge("vllm:kv_cache_usage_perc", "Share of the KV cache's pages that sequences hold; 1 = all.", fixed=fixed)
        self._cached = Gauge("quintet:kv_cache_cached_pages", "Pages that nobody holds and that can be found again.", fixed=fixed)
        self._tokens = Histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", BATCH_TOKENS, fixed=fixed)
        self._counters = [
            Counter("quintet:engine_steps", "Engine steps finished.", fixed=fixed),
            Counter("quintet:prefill_tokens", "Tokens computed in prefill; neither cached ones nor those a sample shares.", fixed=fixed),
            Counter("vllm:num_preemptions", "Times that a sequence lost its pages to others.", fixed=fixed),
            Counter("vllm:prefix_cache_queries", "Prompt tokens looked for in the prefix cache.", fixed=fixed),
            Counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", fixed=fixed),
            Counter("vllm:spec_decode_num_drafts", "Times that tokens were drafted for a sequence.", fixed=fixed),
            Counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", fixed=fixed),
            Counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were drawn too.", fixed=fixed),
        ]

    def of(self, health: Health) -> list[Metric]:
        """The metrics, as they are now."""
        counts, pages = health.counts, health.pages
        self._running.set(health.running)
        self._waiting.set(health.waiting)
        self._usage.set(pages.used / pages.total if pages.total else 0.0)
        self._cached.set(pages.cached)
        self._tokens.show(health.batches, counts.tokens)
        shown = [counts.steps, counts.prefilled, counts.preempted, counts.queried, counts.found]
        shown += [counts.drafts, counts.drafted, counts.accepted]
        for counter, total in zip(self._counters, shown, strict=True):
            counter.show(total)
        return [self._running, self._waiting, self._usage, self._cached, self._info(pages), self._tokens, *self._counters]

    def _info(self, pages: Pages) -> Gauge:
        """vLLM tells the cache's shape as labels; there, blocks are what pages are here."""
        shape = {"block_size": str(pages.size), "num_gpu_blocks": str(pages.total)}
        info = Gauge("vllm:cache_config_info", "Tokens of a page, and how many pages there are.", fixed={**self._fixed, **shape})
        info.set(1)
        return info


class Observer:
    """Follows one completion.

    Args:
        arrived: on the telemetry's clock.
    """

    def __init__(self, telemetry: Telemetry, request: CompletionRequest, arrived: float) -> None:
        self._telemetry = telemetry
        self._arrived = arrived
        self._last = 0.0  # when text last came; 0 = not yet
        self.first_s: float | None = None
        self.usage = Usage(0, 0)
        self.reason = ""
        telemetry.n.observe(request.n)
        if request.max_tokens is not None:
            telemetry.max_tokens.observe(min(request.max_tokens, 2**63))  # it may have thousands of digits, which no float can hold

    def saw(self, batch: Sequence[Event]) -> None:
        """Events of an engine step."""
        text = False
        for event in batch:
            match event:
                case ChoiceDelta():
                    text = True
                case ChoiceDone(finish=finish):
                    self._reason(_REASON[finish])
                case Finished(timing=timing):
                    self._telemetry.queue.observe(timing.queue)
                    self._telemetry.prefill.observe(timing.prompt)
                    self._telemetry.decode.observe(timing.completion)
                case Failed():
                    self._reason("error")
        if text:
            self._saw_text(self._telemetry.clock())

    def _saw_text(self, now: float) -> None:
        if self._last:
            self._telemetry.gap.observe(now - self._last)
        else:
            self.first_s = now - self._arrived
            self._telemetry.first.observe(self.first_s)
        self._last = now

    def ended(self, usage: Usage) -> None:
        """The answer is over, complete or not; ``usage`` is what was computed."""
        telemetry = self._telemetry
        self.usage = usage
        if not self.reason:  # the client left before any choice was done
            self._reason("abort")
        telemetry.latency.observe(telemetry.clock() - self._arrived)
        telemetry.prompt_tokens.add(usage.prompt_tokens)
        telemetry.generation_tokens.add(usage.completion_tokens)
        telemetry.cached.add(usage.cached_tokens)
        telemetry.prompt.observe(usage.prompt_tokens)
        telemetry.generation.observe(usage.completion_tokens)

    def facts(self) -> dict[str, str | float | None]:
        """For the access log."""
        first = None if self.first_s is None else round(self.first_s * 1000, 1)
        usage = self.usage
        return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "finish": self.reason, "ttft_ms": first}

    def _reason(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._telemetry.success.add(labels=(reason,))


def log_access(**facts: str | float | None) -> None:
    """Write the line of a request, without the facts that are not known."""
    if ACCESS.isEnabledFor(logging.INFO):
        ACCESS.info(json.dumps({name: fact for name, fact in facts.items() if fact not in (None, "")}, separators=(",", ":")))
