"""Models from the Hugging Face hub, kept in the hub's own cache; the only importer of ``huggingface_hub``.

A file that is in the cache already is used without asking the hub. ``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE``
and ``HF_ENDPOINT`` work as everywhere else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quintet.errors import ModelError, shorten
from quintet.models.files import Report, StoredModel, check_space, file_errors, human, local_model, part_names, sha256

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

PREFIX = "hf:"
DEFAULT_QUANT = "Q4_K_M"


@dataclass(frozen=True, slots=True)
class HubReference:
    """``hf:user/repo[:want]``; ``want`` is a quantisation such as ``Q8_0`` or a file's name, of a split model the first's, empty = the
    default."""

    repo: str
    want: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in a hub repository.

    Args:
        size: bytes; 0 when the hub does not say.
        sha256: empty when the hub does not say.
    """

    name: str
    size: int
    sha256: str


def resolve(text: str, report: Report, *, offline: bool, refresh: bool) -> StoredModel:
    """The model for ``hf:user/repo[:QUANT or file]``, downloaded if it is not in the hub's cache: one file, or all that it is split into.

    Args:
        refresh: ask the hub even if a fitting file is here.

    Raises:
        ModelError: malformed reference, no fitting file, hub, network or disk trouble.
    """
    reference = parse(text)
    here = _cached(reference.repo)
    offline = offline or _offline_mode()
    if not refresh or offline:
        if exact := _match(list(here), reference.want or DEFAULT_QUANT):
            return _stored(reference.repo, exact, here[exact])
        if offline:
            name = pick(list(here), reference) if here else ""
            if not name:
                raise ModelError(f"{PREFIX}{reference.repo} is not in the cache and offline mode is on; pull it with a network first.")
            return _stored(reference.repo, name, here[name])
    return _fetch(reference, report)


def parse(text: str) -> HubReference:
    """Take a reference apart.

    Raises:
        ModelError: not of the form ``hf:user/repo[:QUANT or file]``.
    """
    repo, _, want = text.removeprefix(PREFIX).partition(":")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo, re.ASCII):
        raise ModelError(f"malformed model reference {shorten(text)}: write hf:user/repo, hf:user/repo:QUANT or hf:user/repo:file.gguf.")
    return HubReference(repo, part_names(want)[0])


def pick(names: Sequence[str], reference: HubReference) -> str:
    """Choose the ``.gguf`` file a reference means among a repository's file names; of a split model the first.

    Asked for: that file, or the first whose name has that quantisation as a word, whatever its case. Not asked: ``Q4_K_M``, else
    the first. Vision projectors (``mmproj``) are never chosen unasked.

    Raises:
        ModelError: nothing fits.
    """
    models = sorted({part_names(name)[0] for name in names if name.lower().endswith(".gguf") and "mmproj" not in name.lower()})
    if not models:
        raise ModelError(f"{PREFIX}{reference.repo} holds no .gguf file; Quintet runs GGUF models only.")
    chosen = _match(names, reference.want) if reference.want else _match(models, DEFAULT_QUANT) or models[0]
    if not chosen:
        there = ", ".join(models[:12]) + (", …" if len(models) > 12 else "")
        raise ModelError(f"{PREFIX}{reference.repo} has no file for {shorten(reference.want)}; it has: {there}.")
    return part_names(chosen)[0]


def stored() -> list[StoredModel]:
    """Every whole ``.gguf`` model in the hub's cache."""
    return [
        _stored(repo.repo_id, name, path)
        for repo in _repos()
        for name, path in _files(repo, whole=True).items()
        if "mmproj" not in name.lower()
    ]


def _match(names: Sequence[str], want: str) -> str:
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf"))
    if want in ggufs:
        return want
    word = re.compile(rf"(?<![a-z0-9]){re.escape(want)}(?![a-z0-9_])", re.IGNORECASE)
    return next((name for name in ggufs if word.search(name) and "mmproj" not in name.lower()), "")


def _stored(repo: str, name: str, path: Path) -> StoredModel:
    return local_model(f"{PREFIX}{repo}:{name}", path)


def _offline_mode() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _repos() -> list[CachedRepoInfo]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return [repo for repo in scan_cache_dir(_cache()).repos if repo.repo_type == "model"]
    except CacheNotFound:
        return []


def _files(repo: CachedRepoInfo, *, whole: bool) -> Mapping[str, Path]:
    """The repository's cached ``.gguf`` files by their path in it; of several revisions the newest.

    Args:
        whole: only those of whole models, and of a split one only the first.
    """
    found: dict[str, Path] = {}
    for revision in sorted(repo.revisions, key=lambda one: one.last_modified):
        files = (file.file_path for file in revision.files if file.file_name.lower().endswith(".gguf") and file.file_path.is_file())
        here = {path.relative_to(revision.snapshot_path).as_posix(): path for path in files}
        for name, path in here.items():
            names = part_names(name)
            if not whole or (name == names[0] and here.keys() >= set(names)):
                found[name] = path
    return found


def _cached(repo_id: str, *, whole: bool = True) -> Mapping[str, Path]:
    return next((_files(repo, whole=whole) for repo in _repos() if repo.repo_id == repo_id), {})


def _fetch(reference: HubReference, report: Report) -> StoredModel:
    from huggingface_hub import hf_hub_download

    remote = _remote_files(reference)
    first, *others = part_names(pick(list(remote), reference))
    name = f"{PREFIX}{reference.repo}:{first}"
    if lacking := [part for part in (first, *others) if part not in remote]:
        raise ModelError(f"{name} is split, and the repository lacks {lacking[0]}.")
    files = [remote[part] for part in (first, *others)]
    before = _cached(reference.repo, whole=False)
    if missing := [file for file in files if file.name not in before]:
        need = sum(file.size for file in missing)
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        report.note(f"fetching {PREFIX}{reference.repo}:{missing[0].name}{rest}: {human(need)}, to {_cache()}")
        check_space(_cache(), need)
    done, total, fresh = 0, sum(file.size for file in files), []
    for file in files:
        with file_errors(_cache()), _hub_errors(reference):
            path = Path(hf_hub_download(reference.repo, file.name, cache_dir=_cache(), tqdm_class=_bar(report, done, total)))
        done += file.size
        if path != before.get(file.name):
            _check(path, file)
            fresh.append(file)
    if fresh:
        report.note(f"{name} is ready{', SHA-256 checked' if all(file.sha256 for file in fresh) else ''}")
    return _stored(reference.repo, first, path.with_name(Path(first).name))


def _bar(report: Report, before: int, total: int) -> type:
    """What the hub library takes for a progress bar's class: it tells of one file's bytes as of those of all files.

    Args:
        before: bytes of the files before it.
        total: of all of them.
    """

    class Bar:
        def __init__(self, *, initial: int = 0, **_: object) -> None:
            self._done = before
            self.update(initial)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, size: float) -> None:
            self._done += int(size)
            report.progress(min(self._done, total), total)

        def update_transfer(self, size: float) -> None:
            """Bytes off the network, which may be fewer than those that they become; only these count."""

        def set_postfix_str(self, text: str, *, refresh: bool) -> None:
            """How fast it is, which the report finds out itself."""

        set_transfer_postfix_str = set_postfix_str

        def close(self) -> None:
            pass

    return Bar


def _remote_files(reference: HubReference) -> dict[str, RemoteFile]:
    from huggingface_hub import model_info

    with _hub_errors(reference):
        siblings = model_info(reference.repo, files_metadata=True).siblings or []
    return {one.rfilename: RemoteFile(one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else "") for one in siblings}


def _check(path: Path, file: RemoteFile) -> None:
    """Refuse a download that is not what the hub promised, and take it out of the cache.

    Raises:
        ModelError: wrong hash.
    """
    if not file.sha256 or (digest := sha256(path)) == file.sha256:
        return
    path.resolve().unlink(missing_ok=True)  # the blob behind the snapshot's link
    path.unlink(missing_ok=True)
    raise ModelError(f"the downloaded {file.name} has the wrong SHA-256 hash ({digest}, not {file.sha256}); it was removed.")


@contextlib.contextmanager
def _hub_errors(reference: HubReference) -> Iterator[None]:
    """Turn the hub library's errors, and those of the HTTP library below it, into one clear line.

    Raises:
        ModelError: instead of any of them.
    """
    from huggingface_hub import errors

    name = f"{PREFIX}{reference.repo}"
    known: tuple[tuple[type[Exception], str], ...] = (
        (errors.GatedRepoError, f"{name} is gated: accept its terms on its page, then set HF_TOKEN."),
        (errors.RepositoryNotFoundError, f"{name} does not exist, or is private: check the name, or set HF_TOKEN."),
        (errors.OfflineModeIsEnabled, f"{name} is not in the cache and HF_HUB_OFFLINE is set."),
        (errors.HFValidationError, f"{name} is not a valid repository name."),
    )
    try:
        yield
    except Exception as error:  # the HTTP library's own classes pass through, and which library that is has changed before
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, for file_errors
        for kind, line in known:
            if isinstance(error, kind):
                raise ModelError(line) from error
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{name} cannot be fetched from the hub: {first[0][:160]}") from error
