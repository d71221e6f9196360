"""`tinygpt bench`: speed and memory by cache and length of the prompt."""
