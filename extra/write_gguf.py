"""The writer of GGUF files, which is the package's: kept here under the name that tools and tests know."""

from tinygrad.apps.gguf_writer import quantize_q8_0, write_gguf

__all__ = ["quantize_q8_0", "write_gguf"]
