"""Shared by all tests."""

from __future__ import annotations

import os

# No test may reach a hub or read the tokens of whoever runs it; set before huggingface_hub is imported anywhere.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
for _name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "QUINTET_API_KEY"):
    os.environ.pop(_name, None)
