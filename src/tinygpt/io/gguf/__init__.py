"""GGUF: header, block formats, architectures, vocabularies."""
