"""``python tests/tools/record_folder_tokenizers.py``, where transformers is installed: small tokenizers as folders have them, and what
``AutoTokenizer`` makes of texts with them, to ``tests/golden/folder_tokenizers``.

The forms are those of Llama 3 (byte-level, whole words, BOS), of Llama 2 (SentencePiece as BPE with byte fallback; a space is put first,
BOS before and EOS after) and of Gemma (the same without the space, with added tokens that are plain text, and padding rows).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

OUT = Path(__file__).parents[1] / "golden" / "folder_tokenizers"
CORPUS = [
    "The sky is blue and the sea is blue too. The end of the line.",
    "def main(argument): return argument + 1  # a comment\n\n    for i in range(10): print(i)",
    "Der Himmel ist blau, und das Meer auch. Ça va très bien, merci. Это небо.",
    "it's they're we'll I'd don't 12345 6789 2024-01-02",
] * 8
TEXTS = [
    "", " ", "  two  spaces ", "The sky is", " The sky", "the\n\nline\t\ttab", "12345 and 1", "it's they'll",
    "naïve café Ça", "небо 天空 🙂",
    "<s>The<|end|> sky", "a<|end|>b", "<think>the</think> sky", "The</s>", "x<0x41>y", "\u2581the", "a\u0301 e\u0301", "\0\x01",
    "<|begin|>", "The <|end|>  is", "\n\n\n", "    indented", "end of the line" * 3,
]  # fmt: skip
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def trained(made: Tokenizer, size: int, special: list[str], alphabet: list[str]) -> Tokenizer:
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    return made


def llama_3() -> tuple[Tokenizer, dict[str, Any]]:
    made = Tokenizer(models.BPE(ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    trained(made, 400, [], pre_tokenizers.ByteLevel.alphabet())
    made.add_special_tokens(["<|begin|>", "<|end|>"])
    made.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    begin = ("<|begin|>", made.token_to_id("<|begin|>"))
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|begin|> $A", pair="$A $B", special_tokens=[begin]),
        ]
    )
    return made, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}


def _sentence_piece(special: list[str]) -> Tokenizer:
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.pre_tokenizer = pre_tokenizers.Split(Regex("(?=\u2581)"), "merged_with_next")
    trained(made, 500, [*special, *(f"<0x{byte:02X}>" for byte in range(256))], [])
    document = json.loads(made.to_str())
    document["added_tokens"] = [one for one in document["added_tokens"] if not one["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(document))


def llama_2() -> tuple[Tokenizer, dict[str, Any]]:
    made = _sentence_piece(["<unk>", "<s>", "</s>"])
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.pre_tokenizer = None
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    ends = [(text, made.token_to_id(text)) for text in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A $B </s>", special_tokens=ends)
    flags = {"add_bos_token": False, "unk_token": "<unk>"}  # which transformers does not heed
    return made, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", **flags}


def gemma() -> tuple[Tokenizer, dict[str, Any]]:
    made = _sentence_piece(["<pad>", "<eos>", "<bos>", "<unk>"])
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n", "\u2581\u2581\u2581\u2581", "<|end|>", "<think>", "</think>")])
    bos = ("<bos>", made.token_to_id("<bos>"))
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[bos])
    return made, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}


def main() -> None:
    for make in (llama_3, llama_2, gemma):
        folder = OUT / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        made, settings = make()
        (folder / "tokenizer.json").write_text(json.dumps(json.loads(made.to_str()), ensure_ascii=True, separators=(",", ":")) + "\n")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
        theirs = AutoTokenizer.from_pretrained(folder)
        rows = [{"text": text, "ids": theirs(text)["input_ids"]} for text in TEXTS]
        for row in rows:
            row["decoded"] = theirs.decode(row["ids"], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        (OUT / f"{make.__name__}.json").write_text(json.dumps(rows, indent=0) + "\n")


if __name__ == "__main__":
    main()
