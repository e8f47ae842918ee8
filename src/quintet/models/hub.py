"""Models from the Hugging Face hub, kept in the hub's own cache; the only importer of ``huggingface_hub``.

A file that is in the cache already is used without asking the hub. ``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE``
and ``HF_ENDPOINT`` work as everywhere else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quintet.errors import ModelError, shorten
from quintet.models.files import HUB, Report, StoredModel, check_space, file_errors, human, local_model, part_names, parts, sha256, sync
from quintet.models.folder.files import CONFIG, INDEX, SINGLE, SMALL, TOKENIZER, weights

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

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
    """The model for ``hf:user/repo[:QUANT or file]``, downloaded if it is not in the hub's cache: one GGUF file, or all that it is split
    into; of a repository without such files, what a folder is made of.

    Args:
        refresh: ask the hub even if a fitting file is here.

    Raises:
        ModelError: malformed reference, no fitting file, hub, network or disk trouble.
    """
    reference = parse(text)
    here = _cached(reference.repo)
    offline = offline or _offline_mode()
    if not refresh or offline:
        if not reference.want and not here and (folder := _folders().get(reference.repo)):
            return _stored_folder(reference.repo, folder)
        if exact := _match(list(here), reference.want or DEFAULT_QUANT):
            return _stored(reference.repo, exact, here[exact])
        if offline:
            name = pick(list(here), reference) if here else ""
            if not name:
                raise ModelError(f"{HUB}{reference.repo} is not in the cache and offline mode is on; pull it with a network first.")
            return _stored(reference.repo, name, here[name])
    return _fetch(reference, report)


def parse(text: str) -> HubReference:
    """Take a reference apart.

    Raises:
        ModelError: not of the form ``hf:user/repo[:QUANT or file]``.
    """
    repo, _, want = text.removeprefix(HUB).partition(":")
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
        pickled = any(name.endswith((".bin", ".pth", ".pt")) for name in names)
        rest = "; it has pickles, which are not opened, since they run code" if pickled else f", and neither {SINGLE} nor {INDEX}"
        raise ModelError(f"{HUB}{reference.repo} holds no .gguf file{f' for {shorten(reference.want)}' if reference.want else rest}.")
    chosen = _match(names, reference.want) if reference.want else _match(models, DEFAULT_QUANT) or models[0]
    if not chosen:
        there = ", ".join(models[:12]) + (", …" if len(models) > 12 else "")
        raise ModelError(f"{HUB}{reference.repo} has no file for {shorten(reference.want)}; it has: {there}.")
    return part_names(chosen)[0]


def stored() -> list[StoredModel]:
    """Every whole model in the hub's cache: ``.gguf`` files, and folders with safetensors."""
    repos = _repos()
    found = [_stored(repo.repo_id, name, path) for repo in repos for name, path in _ggufs(repo).items() if "mmproj" not in name.lower()]
    return found + [_stored_folder(name, path) for name, path in _folders(repos).items()]


def _match(names: Sequence[str], want: str) -> str:
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf"))
    if want in ggufs:
        return want
    word = re.compile(rf"(?<![a-z0-9]){re.escape(want)}(?![a-z0-9_])", re.IGNORECASE)
    return next((name for name in ggufs if word.search(name) and "mmproj" not in name.lower()), "")


def _stored(repo: str, name: str, path: Path) -> StoredModel:
    return local_model(f"{HUB}{repo}:{name}", path)


def _stored_folder(repo: str, path: Path) -> StoredModel:
    return replace(local_model(f"{HUB}{repo}", path), name=repo.rpartition("/")[2])  # the folder's own is a revision's number


def _folders(repos: Sequence[CachedRepoInfo] | None = None) -> dict[str, Path]:
    """The snapshots in the cache that are whole models in safetensors, by repository; of several the newest.

    Other programs fetch a repository's files one by one too: one that makes token ids itself leaves a snapshot without a tokenizer.
    """
    found: dict[str, Path] = {}
    for repo in _repos() if repos is None else repos:
        for folder, here in _revisions(repo):
            with contextlib.suppress(ModelError):
                files = parts(folder)
                if folder / TOKENIZER in files and set(files) <= set(here.values()):
                    found[repo.repo_id] = folder
    return found


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
        with file_errors(_cache()):
            return [repo for repo in scan_cache_dir(_cache()).repos if repo.repo_type == "model"]
    except CacheNotFound:
        return []


def _ggufs(repo: CachedRepoInfo) -> Mapping[str, Path]:
    """The repository's cached ``.gguf`` models by their path in it, of a split one the first file; of several revisions the newest."""
    found: dict[str, Path] = {}
    for _, here in _revisions(repo):
        for name, path in here.items():
            names = part_names(name)
            if name.lower().endswith(".gguf") and name == names[0] and here.keys() >= set(names):
                found[name] = path
    return found


def _revisions(repo: CachedRepoInfo) -> Iterator[tuple[Path, dict[str, Path]]]:
    """The folder of each revision and its cached files by their path in it, but for those that are not checked; the newest last."""
    for revision in sorted(repo.revisions, key=lambda one: one.last_modified):
        folder = revision.snapshot_path
        files = (file.file_path for file in revision.files if file.file_path.is_file() and not _mark(file.blob_path).exists())
        yield folder, {path.relative_to(folder).as_posix(): path for path in files}


def _cached(repo_id: str) -> Mapping[str, Path]:
    return next((_ggufs(repo) for repo in _repos() if repo.repo_id == repo_id), {})


def _fetched(repo_id: str) -> Mapping[str, Path]:
    """Every file of a repository that is here; of several revisions the newest."""
    files: dict[str, Path] = {}
    for repo in _repos():
        if repo.repo_id == repo_id:
            for _, here in _revisions(repo):
                files |= here
    return files


def _fetch(reference: HubReference, report: Report) -> StoredModel:
    remote = _remote_files(reference)
    if not reference.want and not any(name.lower().endswith(".gguf") for name in remote) and {SINGLE, INDEX} & remote.keys():
        return _fetch_folder(reference, remote, report)
    first, *others = part_names(pick(list(remote), reference))
    name = f"{HUB}{reference.repo}:{first}"
    if lacking := [part for part in (first, *others) if part not in remote]:
        raise ModelError(f"{name} is split, and the repository lacks {lacking[0]}.")
    folder = _download(reference, [remote[part] for part in (first, *others)], name, report)
    return _stored(reference.repo, first, folder / Path(first).name)


def _fetch_folder(reference: HubReference, remote: Mapping[str, RemoteFile], report: Report) -> StoredModel:
    name = f"{HUB}{reference.repo}"
    whole = SINGLE in remote  # an index beside it does not count
    first = [remote[file] for file in (SMALL if whole else (*SMALL, INDEX)) if file in remote]
    folder = _download(reference, first, f"{name}, its configuration and tokenizer,", report) if CONFIG in remote else None
    if folder is None:
        raise ModelError(f"{name} has no {CONFIG}: it is not a model's repository.")
    names = [SINGLE] if whole else [path.name for path in weights(folder)]
    if lacking := [file for file in names if file not in remote]:
        raise ModelError(f"{name} lacks {lacking[0]}, which its {INDEX} names.")
    if _download(reference, [remote[file] for file in names], name, report) != folder:
        raise ModelError(f"{name} was changed while it was fetched; try again.")
    return _stored_folder(reference.repo, folder)


def _download(reference: HubReference, files: Sequence[RemoteFile], name: str, report: Report) -> Path:
    """Fetch those of the files that are not here, and check them; the folder of the first one.

    Args:
        name: of all of them, for people.
    """
    from huggingface_hub import hf_hub_download

    before = _fetched(reference.repo)
    if missing := [file for file in files if not _is_here(reference.repo, before.get(file.name), file)]:
        need = sum(file.size for file in missing)
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        report.note(f"fetching {HUB}{reference.repo}:{missing[0].name}{rest}: {human(need)}, to {_cache()}")
        check_space(_cache(), need)
    done, total = 0, sum(file.size for file in files)
    fresh: list[RemoteFile] = []
    places: list[Path] = []
    for file in files:
        with file_errors(_cache()), _marked(reference.repo, before.get(file.name), file):
            with _hub_errors(reference):
                path = Path(hf_hub_download(reference.repo, file.name, cache_dir=_cache(), tqdm_class=_bar(report, done, total)))
            if path != before.get(file.name):
                _check(path, file)
                fresh.append(file)
        done += file.size
        places.append(path)
    if fresh:
        report.note(f"{name} is ready{', SHA-256 checked' if all(file.sha256 for file in fresh) else ''}")
    return places[0].parent


def _is_here(repo_id: str, path: Path | None, file: RemoteFile) -> bool:
    """Whether its bytes need not be fetched. The cache names a large file's by their hash, and links to them: what is here may be another
    file of that name, and after a check that was broken off there are the bytes alone.

    Args:
        path: what is here of that name.
    """
    if not file.sha256 or (path is not None and not path.is_symlink()):
        return path is not None
    with file_errors(_cache()):
        return _blob(repo_id, file).is_file()


def _blob(repo_id: str, file: RemoteFile) -> Path:
    """Where the cache has a large file's bytes."""
    from huggingface_hub.file_download import repo_folder_name

    return _cache() / repo_folder_name(repo_id=repo_id, repo_type="model") / "blobs" / file.sha256


def _named(path: Path, file: RemoteFile) -> bool:
    """The cache has its bytes under their hash."""
    return path.is_symlink() and path.readlink().name == file.sha256


def _mark(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.unchecked")


@contextlib.contextmanager
def _marked(repo_id: str, path: Path | None, file: RemoteFile) -> Iterator[None]:
    """What is fetched is marked from before it has its name in the cache until it was checked, as the library knows of no check: a process
    may be killed in one, for that takes seconds. Its bytes stay for the next time, which checks them.

    Args:
        path: what is here of that name.
    """
    if not file.sha256 or (path is not None and (not path.is_symlink() or _named(path, file))):
        yield
        return
    blob, checked = _blob(repo_id, file), False
    blob.parent.mkdir(parents=True, exist_ok=True)
    _mark(blob).touch()
    try:
        yield
        checked = True
    finally:
        if checked or not blob.is_file():  # where nothing came, or nothing right, another program may bring it
            _mark(blob).unlink(missing_ok=True)  # another process may have checked it too


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
    try:
        digest = file.sha256 and sha256(path)
    except BaseException:  # Ctrl-C above all
        if not _named(path, file):  # no mark is seen then, as in a cache on a disk without links
            path.unlink(missing_ok=True)
        raise
    if digest != file.sha256:
        path.resolve().unlink(missing_ok=True)  # the blob behind the snapshot's link
        path.unlink(missing_ok=True)
        raise ModelError(f"the downloaded {file.name} has the wrong SHA-256 hash ({digest}, not {file.sha256}); it was removed.")
    sync(path)  # what was checked is in memory: after a power cut the file would be here, with zeros in it


@contextlib.contextmanager
def _hub_errors(reference: HubReference) -> Iterator[None]:
    """Turn the hub library's errors, and those of the HTTP library below it, into one clear line.

    Raises:
        ModelError: instead of any of them.
    """
    from huggingface_hub import errors

    name = f"{HUB}{reference.repo}"
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
