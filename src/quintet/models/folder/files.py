"""Which files of a folder its model is made of."""

from __future__ import annotations

from pathlib import Path

from quintet.errors import ModelError
from quintet.models.files import file_errors
from quintet.models.folder.documents import read_document
from quintet.models.metadata import quoted

CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION, TEMPLATE = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SMALL = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, PREPROCESSOR, PROCESSOR)
MAX_INDEX = 1 << 25
MAX_SHARDS = 4096


def parts(folder: Path) -> tuple[Path, ...]:
    """All that the model is made of and that is there, in a fixed order: configuration, tokenizer, weights.

    Raises:
        ModelError: it is not a folder with a model in safetensors.
    """
    with file_errors(folder):
        return (*(folder / name for name in SMALL if (folder / name).is_file()), *weights(folder))


def weights(folder: Path) -> tuple[Path, ...]:
    """The files that hold the tensors.

    Raises:
        ModelError: there are none, or the index is wrong.
    """
    with file_errors(folder):
        whole = (folder / CONFIG).is_file()
        if whole and (folder / SINGLE).is_file():  # which transformers looks for first too
            return (folder / SINGLE,)
        if whole and (folder / INDEX).is_file():
            return tuple(folder / name for name in _shards(folder))
        names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if whole and others:
        raise ModelError(
            f"{folder}: has its weights in {others[0]}: pickles are not opened, since they run code; use a repository with {SINGLE}."
        )
    if adapter := next((name for name in names if name.startswith("adapter_model.")), ""):
        raise ModelError(f"{folder}: {adapter} is an adapter, not a model; merge it into its model first.")
    if not whole:
        held = next((name for name in names if name.endswith(".gguf") and not name.startswith("mmproj") and name.isprintable()), "")
        hint = f"; give the file, such as {folder / held}" if held else ""
        raise ModelError(f"{folder}: has no {CONFIG}: it is not the folder of a model{hint}.")
    if single := [name for name in names if name.endswith(".safetensors")]:
        raise ModelError(f"{folder}: has {single[0]}, but neither {SINGLE} nor {INDEX}.")
    raise ModelError(f"{folder}: has no weights: neither {SINGLE} nor {INDEX}.")


def require_one_model(folder: Path) -> None:
    """For whoever would take the files of an index also where ``model.safetensors`` lies beside it, as vLLM does.

    Raises:
        ModelError: the two are not the same, or the index is wrong.
    """
    with file_errors(folder):
        both = (folder / SINGLE).is_file() and (folder / INDEX).is_file()
    if both and (others := [name for name in _shards(folder) if name != SINGLE]):
        raise ModelError(
            f"{folder}: has {SINGLE}, and {INDEX} names {others[0]}: vLLM would take what the index names; remove what is not meant."
        )


def _shards(folder: Path) -> list[str]:
    """The files that the index names, each once, by name; each lies in the folder itself."""
    found = read_document(folder / INDEX, MAX_INDEX).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{INDEX}: 'weight_map' must be an object of tensors and the files they are in.")
    names = {name for name in found.values() if isinstance(name, str)}
    for tensor, name in found.items():
        if not isinstance(name, str) or name != Path(name).name or not name.endswith(".safetensors") or not name.isprintable():
            raise ModelError(
                f"{INDEX}: the file of tensor {quoted(tensor)} must be a .safetensors file of the folder, got {quoted(str(name))}."
            )
    if len(names) > MAX_SHARDS:
        raise ModelError(f"{INDEX}: must name at most {MAX_SHARDS} files, got {len(names)}.")
    return sorted(names)
