"""A Hugging Face hub whose cache has the real layout."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@dataclass
class FakeHub:
    """A hub with one repository, ``user/repo``; downloads land in the real cache layout."""

    cache: Path
    files: dict[str, bytes] = field(default_factory=dict)
    promised: dict[str, str] = field(default_factory=dict)
    revision: str = "a" * 40
    failure: Exception | None = None
    download_failure: tuple[str, Exception] | None = None
    asked: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    def model_info(self, repo: str, *, files_metadata: bool) -> SimpleNamespace:
        assert files_metadata
        self.asked.append(repo)
        if self.failure:
            raise self.failure
        return SimpleNamespace(siblings=[self._sibling(name) for name in self.files])

    def hf_hub_download(self, repo: str, name: str, *, cache_dir: Path, tqdm_class: Any) -> str:
        """As the library does it: what is there is not fetched, and a bar is made and driven for what is."""
        if self.download_failure and self.download_failure[0] in ("", name):
            raise self.download_failure[1]
        there = cache_dir / f"models--{repo.replace('/', '--')}" / "snapshots" / self.revision / name
        if there.exists() and there.read_bytes() == self.files[name]:
            return str(there)
        self.sent.append(name)
        with tqdm_class(unit="B", unit_scale=True, total=len(self.files[name]), initial=0, desc=name) as bar:
            bar.update(len(self.files[name]))
        return str(self.put(repo, name, self.files[name], Path(cache_dir)))

    def put(self, repo: str, name: str, content: bytes, cache: Path | None = None) -> Path:
        """What was promised is a blob's name, whatever came."""
        top = (cache or self.cache) / f"models--{repo.replace('/', '--')}"
        blob = top / "blobs" / self.promised.get(name, hashlib.sha256(content).hexdigest())
        link = top / "snapshots" / self.revision / name
        for folder in (blob.parent, link.parent, top / "refs"):
            folder.mkdir(parents=True, exist_ok=True)
        (top / "refs" / "main").write_text(self.revision)
        blob.write_bytes(content)
        if not link.is_symlink():
            link.symlink_to(blob)
        return link

    def _sibling(self, name: str) -> SimpleNamespace:
        digest = self.promised.get(name, hashlib.sha256(self.files[name]).hexdigest())
        lfs = SimpleNamespace(sha256=digest) if name.endswith((".gguf", ".safetensors")) else None
        return SimpleNamespace(rfilename=name, size=len(self.files[name]), lfs=lfs)
