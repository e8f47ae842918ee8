"""llama.cpp's own tokenizer through its C interface, as the oracle for ours. Needs ``pip install xllamacpp==2026.10.11549``."""

from __future__ import annotations

import ctypes
from pathlib import Path


class ModelParams(ctypes.Structure):
    """``struct llama_model_params`` of that release, passed by value."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("devices", "tensor_buft_overrides")),
        *((name, ctypes.c_int32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, ctypes.c_void_p) for name in ("tensor_split", "progress_callback", "user_data", "kv_overrides")),
        *((name, ctypes.c_bool) for name in ("vocab_only", "check_tensors", "extra_bufts", "no_host", "no_alloc", "load_mtp")),
    )


def library() -> ctypes.CDLL:
    import xllamacpp

    lib = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
    lib.llama_model_default_params.restype = ModelParams
    lib.llama_model_load_from_file.restype = lib.llama_model_get_vocab.restype = ctypes.c_void_p
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
    lib.llama_model_get_vocab.argtypes = lib.llama_model_free.argtypes = lib.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
    lib.llama_tokenize.argtypes = [
        *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32),
        *(ctypes.c_bool, ctypes.c_bool),
    ]
    for name in ("is_eog", "is_control"):
        function = getattr(lib, f"llama_vocab_{name}")
        function.restype, function.argtypes = ctypes.c_bool, [ctypes.c_void_p, ctypes.c_int32]
    for name in ("bos", "eos", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"):
        getattr(lib, f"llama_vocab_{name}").argtypes = [ctypes.c_void_p]
    lib.llama_token_to_piece.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_bool]
    lib.ggml_log_set.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    lib.llama_log_set(silent, None)
    setattr(lib, "keep", silent)  # noqa: B010 - a library has no attributes of ours, and the callback must live as long as it
    lib.llama_backend_init()
    return lib


class LlamaVocab:
    """The vocabulary of a GGUF file as llama.cpp reads it."""

    def __init__(self, path: Path, lib: ctypes.CDLL | None = None) -> None:
        self.lib = lib or library()
        params = self.lib.llama_model_default_params()
        assert params.extra_bufts and not params.vocab_only, "llama_model_params has another layout in this release"
        params.vocab_only = True
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.size = self.lib.llama_vocab_n_tokens(self.vocab)

    def encode(self, text: str) -> list[int]:
        """Ids with special tokens parsed and BOS or EOS as the metadata asks."""
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 16))()
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), True, True)
        assert count >= 0, text
        return ids[:count]

    def piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(4096)
        size = self.lib.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[:size]

    def roles(self) -> dict[str, object]:
        """Ids with a role; -1 = none."""
        names = {"prefix": "pre", "suffix": "suf", "middle": "mid", "pad": "pad", "repo": "rep", "separator": "sep"}
        return {
            "bos": self.lib.llama_vocab_bos(self.vocab),
            "eos": self.lib.llama_vocab_eos(self.vocab),
            "end": [i for i in range(self.size) if self.lib.llama_vocab_is_eog(self.vocab, i)],
            "fim": {ours: getattr(self.lib, f"llama_vocab_fim_{theirs}")(self.vocab) for ours, theirs in names.items()},
        }

    def close(self) -> None:
        self.lib.llama_model_free(self.model)
