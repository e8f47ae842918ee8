"""Why requests are refused, in a word each, for counters and logs."""

from __future__ import annotations

from quintet import errors

REASONS: dict[type[Exception], str] = {
    errors.BadRequest: "invalid_request",
    errors.PromptTooLong: "prompt_too_long",
    errors.Unsupported: "unsupported",
    errors.UnsafePrompt: "unsafe_prompt",
    errors.Unsatisfiable: "unsatisfiable",
    errors.NotAuthorized: "unauthorized",
    errors.Forbidden: "forbidden",
    errors.ModelNotFound: "model_not_found",
    errors.ModelNotAllowed: "model_not_allowed",
    errors.NotFound: "not_found",
    errors.WrongHost: "wrong_host",
    errors.MethodNotAllowed: "method_not_allowed",
    errors.BodyTooLarge: "body_too_large",
    errors.UnsupportedMedia: "unsupported_media",
    errors.HeadTooLarge: "head_too_large",
    errors.SlowBody: "slow_body",
    errors.IdempotencyConflict: "idempotency_conflict",
    errors.TooManyRequests: "too_many_requests",
    errors.OverLimit: "over_limit",
    errors.Overloaded: "overloaded",
    errors.Loading: "loading",
    errors.DeadlineExceeded: "deadline_exceeded",
    errors.EngineFailed: "engine_failed",
    errors.RequestError: "refused",
    Exception: "internal_error",
}
"""By the kind of error; one that is not here counts as the nearest that it is a kind of."""


def reason(error: Exception) -> str:
    """The word for an error."""
    return next(REASONS[kind] for kind in type(error).__mro__ if kind in REASONS)
