"""A model reference becomes files, a model description, tensors and a tokenizer."""
