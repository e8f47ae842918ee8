"""vLLM-CPU over HTTP, from an environment made by hand (docs/benchmarks.md says how): its packages come from an index of their own."""

from __future__ import annotations

from pathlib import Path

from bench.common.install import Store
from bench.common.plan import Plan
from bench.common.proc import PeerError, output
from bench.engines.engines import Command, Served


class VllmServed(Served):
    """It reads no GGUF files on a CPU, so the file's weights are given to it as float32, its fastest format without bfloat16 units.

    Args:
        environment: Python of the environment.
        dtype: what it computes in, ``float32`` or ``bfloat16``, to which it converts the weights as it loads them.
        eager: nothing is compiled: it starts sooner, and computes more slowly.
    """

    group, name = "vllm", "vLLM-CPU, HTTP streaming"

    def __init__(self, plan: Plan, store: Store, environment: Path, *, dtype: str = "float32", eager: bool = False) -> None:
        super().__init__(plan, store, dtype)
        self.python, self.dtype, self.eager = environment, dtype, eager

    def prepare(self) -> str:
        given = Path(self.plan.model)
        self.model = self.store.root / "models" / f"{given.stem}-{given.stat().st_mtime_ns:x}.fp32"
        if not (self.model / "model.safetensors").exists():
            output([self.python, "-m", "bench.engines.vllm_model", given, self.model], self.log, self.plan.limit_s)
        return self.install()

    def install(self) -> str:
        if not self.python.exists():
            raise PeerError(f"there is no {self.python}")
        return f"vllm-cpu {self.store.version(self.python, 'vllm-cpu')}"

    def command(self, port: int) -> Command:
        plan = self.plan
        what: Command = ["--model", self.model, "--served-model-name", self.requested, "--dtype", self.dtype, "--port", str(port)]
        limits = ["--max-model-len", str(max(plan.sequence, 256)), "--max-num-seqs", str(max(plan.clients))]
        cache = [*([] if plan.cache else ["--no-enable-prefix-caching"]), *(["--enforce-eager"] if self.eager else [])]
        setting = ["env", "VLLM_CPU_KVCACHE_SPACE=1", "HF_HUB_OFFLINE=1", f"OMP_NUM_THREADS={plan.threads}"]
        return [*setting, self.python, "-m", "vllm.entrypoints.openai.api_server", *what, *limits, *cache]
