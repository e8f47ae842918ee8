"""``quintet pull``, ``list`` and ``show``."""

from __future__ import annotations

from pathlib import Path

from quintet.backends.native.worker.load import load_tokenizer
from quintet.cli.console import ConsoleReport, OptionError, print_line
from quintet.cli.describe import Description, check_context, describe
from quintet.cli.engines import TOY, DraftPlan, find_draft
from quintet.config import EngineConfig, KvType, Quantize
from quintet.errors import ModelError, counted
from quintet.inputs.infill import infill
from quintet.models import store
from quintet.models.files import StoredModel, cache_dir, human, kept_packs, pack_dir, parts
from quintet.models.opening import open_model
from quintet.models.spec import ModelSpec


def pull(reference: str, *, offline: bool, quiet: bool) -> None:
    """Fetch a model, or check the one that is here; then check that Quintet can read it.

    Raises:
        ModelError: it cannot be had, or is damaged, or of a kind that Quintet does not run.
        OptionError: it has no file.
    """
    _require_file(reference)
    with ConsoleReport() as report:
        model = store.resolve(reference, report, offline=offline, refresh=True)
    open_model(model.path)
    if not quiet:
        print_line(f"{model.reference}  {human(model.size)}  {model.path}")


def list_() -> None:
    """Print the models in the caches, one a line: reference, size, path; and what their packed weights take."""
    models = store.stored()
    width = max((len(model.reference) for model in models), default=0)
    for model in models:
        print_line(f"{model.reference:{width}}  {human(model.size):>8}  {model.path}")
    if not models:
        print_line(f"no models in {cache_dir()} or the Hugging Face cache; `quintet pull` fetches the bundled one")
    count, size = kept_packs()
    if count:
        print_line(f"packed weights of {count}: {human(size)} in {pack_dir()}, which may be removed at any time")


def show(reference: str, ctx_size: int, quantize: Quantize, kv_type: KvType, draft: str, *, offline: bool) -> None:
    """Print a model's description and the memory it needs for a context; and what its draft model needs, if one is named.

    Raises:
        ModelError: as for ``pull``, or a context beyond the model's, or ``quantize`` is not for it; or a draft model with other tokens.
        OptionError: it has no file.
    """
    _require_file(reference)
    with ConsoleReport() as report:
        model = store.resolve(reference, report, offline=offline)
        drafts = find_draft(model, draft, report, kv_type, offline=offline) if draft else None
    about = describe(open_model(model.path), quantize, kv_type)
    context = check_context(ctx_size, about.spec.context) or about.spec.context
    fills = _fills(model.path)
    for name, text in (*rows(model, about, context, fills=fills), *([_draft_row(drafts, context)] if drafts else [])):
        print_line(f"{name:13} {text}")


def _fills(path: Path) -> str:
    try:
        return "no" if infill(load_tokenizer(path)) is None else "yes"
    except ModelError as error:
        return f"unknown: {error}"


def rows(model: StoredModel, about: Description, context: int, *, fills: str) -> list[tuple[str, str]]:
    """The lines of ``show``: (what, value).

    Args:
        fills: whether its vocabulary has what filling in the middle takes.
    """
    spec, files = about.spec, len(parts(model.path))
    kv = about.kv_per_token * min(context, spec.window + EngineConfig().batch_tokens if spec.window else context)
    mix = ", ".join(f"{name} {human(size)} in {count}" for name, count, size in about.mix)
    heads = f"{counted(spec.heads, 'head')} over {counted(spec.kv_heads, 'key-value head')} of {spec.head_dim}"
    shape = f"{counted(len(spec.layers), 'layer')}, {spec.hidden} wide, {heads}"
    return [
        ("model", model.reference + (f" ({spec.name})" if spec.name else "")),
        ("file", f"{model.path}, {human(model.size)}{f' in {files} files' if files > 1 else ''}"),
        ("architecture", spec.architecture),
        ("parameters", f"{about.parameters / 1e6:.1f} M"),
        ("shape", f"{shape}, {_feed_forward(spec)}"),
        ("vocabulary", f"{spec.vocab} tokens{', output tied to the embedding' if spec.tied else ''}"),
        ("context", f"{spec.context} tokens"),
        ("infill", fills),
        ("quantisation", f"{about.quant}: {mix} tensors"),
        ("memory", f"about {human(about.weights + kv)}: weights {human(about.weights)}, KV cache {human(kv)} for {context} tokens"),
        *([("on load", ", ".join(f"--quantize {name}: {human(size)}" for name, size in about.choices.items()))] if about.choices else []),
    ]


def _require_file(reference: str) -> None:
    if reference == TOY:
        raise OptionError("the toy model has no file: there is nothing to fetch or to describe.")


def _draft_row(draft: DraftPlan, context: int) -> tuple[str, str]:
    kv = draft.kv_per_token * context
    needs = f"about {human(draft.weights + kv)} more: weights {human(draft.weights)}, KV cache {human(kv)} for {context} tokens"
    return "draft model", f"{draft.model.reference}, {needs}"


def _feed_forward(spec: ModelSpec) -> str:
    experts = spec.layers[0].experts
    if experts is None:
        return f"{spec.ffn} in the feed-forward part"
    shared = f" and one of {experts.shared} for all" if experts.shared else ""
    return f"{experts.used} of {counted(experts.count, 'expert')} of {experts.ffn}{shared}"
