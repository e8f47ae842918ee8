"""Hugging Face folders: config.json, safetensors and tokenizer.json, read as what their GGUF would be."""
