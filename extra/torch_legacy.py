"""What `torch.save` wrote before PyTorch 1.6 (and writes with `_use_new_zipfile_serialization=False`)."""

from __future__ import annotations

import struct
from typing import Any

from tinygrad.dtype import DType
from tinygrad.nn.gguf import File, contents
from tinygrad.nn.state import CheckpointError, Unpickler, as_file
from tinygrad.tensor import Tensor

MAGIC = 0x1950A86A20F9469CFC6C  # what such a file begins with, pickled


class _FirstPass(Unpickler):
  """Notes the storages' types, and makes no tensors."""

  def __init__(self, source: str, file: Any) -> None:
    super().__init__(source, file, {})
    self.seen: dict[str, DType] = {}

  def persistent_load(self, pid: Any) -> Any:
    dtype, key = super().persistent_load(pid)
    self.seen[key] = dtype
    return dtype, key

  def _rebuild_tensor(self, *_: Any) -> Tensor | None:
    return None

  _rebuild_tensor_v2 = _rebuild_tensor


def torch_load(t: File) -> dict[str, Tensor]:
  """`nn.state.torch_load` for such a file.

  It is three pickles (a magic number, a version, sizes), the object's, that of the storages' keys, and for each of
  these its number of elements (int64) and its bytes. So the object is read twice: first to learn where they are.
  """
  source, data = contents(t)
  try:
    file = as_file(data)
    if _FirstPass(source, file).load() != MAGIC:
      fix = "save it again with torch.save"
      raise CheckpointError(source, "is neither a zip archive nor of the format before it", fix)
    for _ in range(2):
      _FirstPass(source, file).load()
    start, first, storages = file.tell(), _FirstPass(source, file), dict[str, memoryview]()
    first.load()
    keys, at = _FirstPass(source, file).load(), file.tell()
    for key in keys:
      (count,) = struct.unpack_from("<q", data, at)
      end = at + 8 + count * first.seen[key].itemsize
      storages[key], at = data[at + 8 : end], end
    file.seek(start)
    out: dict[str, Tensor] = Unpickler(source, file, storages).load()
    return out
  except CheckpointError:
    raise
  except Exception as e:  # the unpickler's own: a damaged pickle raises nearly anything
    raise CheckpointError(source, f"is no file of torch.save: {type(e).__name__}: {e}") from e
