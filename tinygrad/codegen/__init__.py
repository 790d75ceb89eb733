"""From a kernel's scalar expressions to linear code: `lower_kernel`."""

from tinygrad.codegen.lower import lower_kernel
from tinygrad.codegen.signature import Signature, signature

__all__ = ["Signature", "lower_kernel", "signature"]
