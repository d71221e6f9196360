"""Hugging Face directories, read and written: config.json, safetensors, a tokenizer."""
