"""How large an answer may become: its log-probabilities are counted before anything is computed. Plain code over values.

Text is small: an answer that fills the context 128 times is a few megabytes. Log-probabilities are not, and the front holds all of a JSON
answer's until it is complete: a prompt of 8,000 tokens, echoed 128 times with 20 alternatives, would be 21 million of them, a gigabyte.
"""

from __future__ import annotations

from collections.abc import Sequence

from quintet.errors import BadRequest, counted
from quintet.inputs.sequence import PreparedSequence
from quintet.request import CompletionRequest


def require_answer_size(request: CompletionRequest, sequences: Sequence[PreparedSequence], most: int) -> None:
    """Count each token that is echoed or may be generated, and its alternatives.

    Args:
        sequences: the request's, all samples of a prompt together.
        most: log-probabilities.

    Raises:
        BadRequest: it may need more; names the field that makes it so.
    """
    tokens, each = _sizes(request, sequences)
    if tokens * each <= most:
        return
    alternatives = _alternatives(request)
    most_alternatives = max(alternatives, key=alternatives.__getitem__)  # the field that asks for them
    samples, prompts = max(request.n, request.best_of), len(request.prompts)
    if samples > 1 and tokens * each // samples <= most:
        param = "best_of" if request.best_of > request.n else "n"
    elif prompts > 1 and tokens * each // (samples * prompts) <= most:
        param = "prompt"
    elif tokens <= most:
        param = most_alternatives
    elif request.max_tokens != 0:
        param = "max_tokens"
    else:
        param = "echo" if request.echo else "prompt_logprobs"
    spelled = dict(request.spelled)
    n, length, logprobs = (spelled.get(name, name) for name in ("n", "max_tokens", most_alternatives))
    choices, others = counted(samples * prompts, "choice"), counted(each - 1, "alternative")
    sizes = f"{choices} with {counted(tokens, 'token')} in all, each with {others}"
    rule = f"asks for too much: an answer has at most {most} log-probabilities, and this one may need {tokens * each} ({sizes})"
    raise BadRequest(spelled.get(param, param), f"{rule}; lower it, or another of {n}, {length} and {logprobs}")


def held_size(request: CompletionRequest, sequences: Sequence[PreparedSequence]) -> int:
    """Log-probabilities that may have to be held until the answer, or a choice of it, is complete: all of a JSON answer's, and those of
    generated tokens where the end of a choice tells them again, also of a stream's."""
    tokens, each = _sizes(request, sequences)
    again = sum(sequence.max_tokens for sequence in sequences) if request.repeated else 0
    return ((0 if request.stream else tokens) + again) * each


def _sizes(request: CompletionRequest, sequences: Sequence[PreparedSequence]) -> tuple[int, int]:
    """Tokens, and log-probabilities of each."""
    alternatives = _alternatives(request)
    if not alternatives:
        return 0, 0
    return sum(map(_tokens, sequences)), 1 + max(alternatives.values())


def _alternatives(request: CompletionRequest) -> dict[str, int]:
    """How many each field asks for; none does = there are no log-probabilities.

    What a dialect tells of every token, whatever was asked for (``echo_scored`` is false then), is a number beside each, as its id is.
    """
    scores = None if request.shown is None else request.shown.prompt_logprobs
    asked = {
        "logprobs": request.logprobs if request.echo_scored else None,
        "prompt_logprobs": scores,
        "logprob_token_ids": len(request.logprob_ids) or None,
    }
    return {name: count for name, count in asked.items() if count is not None}


def _tokens(sequence: PreparedSequence) -> int:
    end = len(sequence.tokens) if sequence.prompt_end is None else sequence.prompt_end
    return sequence.max_tokens + (end - sequence.echo_from if sequence.echo else 0)
