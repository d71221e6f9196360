"""Files: a path becomes a checked description, then weights and a tokenizer."""
