"""From a kernel's scalar expressions to linear code: `lower_kernel`."""

from tinygrad.codegen.linearize import signature
from tinygrad.codegen.lower import lower_kernel

__all__ = ["lower_kernel", "signature"]
