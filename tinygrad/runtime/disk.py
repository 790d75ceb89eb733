"""Files as devices: a tensor on `DISK:/path` is the file's bytes, mapped. It is read where it is used, a slice of it on
its own; writing to it writes the file. Nothing is computed there.
"""

import os
from typing import Any

from tinygrad.device import Backend, Capabilities, Computes, DeviceError
from tinygrad.helpers import numpy
from tinygrad.runtime.npy import HostBackend


class DiskBackend(HostBackend):
  """One file. Its memory is a map of it, which can be written where the file can."""

  capabilities = Capabilities(computes=Computes.NOTHING, arrays=True, files=True)

  def __init__(self, name: str) -> None:
    if ":" not in name:
      raise DeviceError("a file is named DISK:/its/path\n  fix: Tensor(pathlib.Path(path)), or device=f'DISK:{path}'")
    super().__init__(name)

  def alloc(self, nbytes: int) -> Any:
    """Maps the first `nbytes` bytes; makes the file, or lengthens it, if need be."""
    path = self.name.partition(":")[2]
    if not os.path.exists(path) or os.path.getsize(path) < nbytes:
      with open(path, "ab") as f:
        f.truncate(nbytes)
    if nbytes == 0:
      return numpy.empty(0, numpy.uint8)
    return numpy.memmap(path, numpy.uint8, "r+" if os.access(path, os.W_OK) else "r", shape=(nbytes,))


open_device: type[Backend] = DiskBackend
