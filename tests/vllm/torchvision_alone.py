"""torchvision for the environment of ``make test-vllm``: of PyPI's only Python is used, for what is compiled in it needs CUDA.

vLLM imports it for nearly every model that sees images, and transformers' processors resize with it, in Python. Without its compiled part
it can no longer be imported, for want of two operators' names, which nothing here calls: they are given to it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NAMES = """
for _name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def main() -> None:
    found = find_spec("torchvision")
    assert found is not None and found.origin is not None
    module = Path(found.origin).with_name("extension.py")
    text = module.read_text(encoding="utf-8")
    if NAMES not in text:
        module.write_text(text + NAMES, encoding="utf-8")


if __name__ == "__main__":
    main()
