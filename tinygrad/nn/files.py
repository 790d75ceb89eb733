"""What files of tensors have in common: their bytes, mapped; the archives they are in; what is said of a broken one."""

import io
import mmap
import os
import struct
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.helpers import FilePath, LazyModule, Remade, file_size, numpy
from tinygrad.tensor import Tensor

zipfile, zlib = LazyModule("zipfile"), LazyModule("zlib")
ENCRYPTED = 1  # of the flags of a zip archive's file
File = Tensor | FilePath  # a file's path, or its bytes as a uint8 tensor
_NUMBERS = (*dtypes.sints, *dtypes.uints, dtypes.float16, dtypes.float32, dtypes.float64)
# I8, F32, …, as safetensors files name them too
PLAIN = {f"{d.name[0].upper()}{d.bitsize}": d for d in _NUMBERS} | {"BF16": dtypes.bfloat16}
REFETCH = "the file is damaged or incomplete: download or write it again"


class CheckpointError(Remade, ValueError):
  """A file of tensors that cannot be used: names the file, what is wrong, and a fix."""

  def __init__(self, source: str, problem: str, fix: str = REFETCH):
    super().__init__(f"{source}: {problem}\n  fix: {fix}")


def look_of(data: memoryview, otherwise: str = REFETCH) -> str:
  """The fix for a file that is not in the format it is read as: what reads it, by how it begins."""
  start = bytes(data[:64])
  if start.startswith(b"GGUF"):
    return "nn.state.gguf_load(path)  # it begins as a GGUF file"
  if start.startswith((b"PK\x03\x04", b"\x80")):
    return "nn.state.torch_load(path)  # it begins as a file of torch.save"
  if start[8:9] == b"{":
    return "nn.state.safe_load(path)  # it begins as a safetensors file"
  if start.startswith(b"version https://git-lfs"):
    return "git lfs pull: this is a pointer to the file"
  if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
    return "download the file itself: this is a page of the web"
  return otherwise


def contents(fn: File) -> tuple[str, memoryview]:
  """(what errors call it, its bytes): a mapped file, or the bytes of a uint8 tensor. Raises: OSError."""
  if isinstance(fn, Tensor):
    return "tensor", memoryview(numpy.ascontiguousarray(fn.numpy())).cast("B")
  size = file_size(fn)
  with open(fn, "rb") as f:  # an empty file cannot be mapped
    return os.fspath(fn), memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")


def zip_contents(source: str, data: memoryview) -> dict[str, memoryview]:
  """The contents of a zip archive; only what is compressed is copied."""
  out: dict[str, memoryview] = {}
  try:
    for i in zipfile.ZipFile(as_file(data)).infolist():
      # the local header: 26 bytes, the lengths of the name and of the extra field, these two, the content
      name, extra = struct.unpack_from("<HH", data, i.header_offset + 26)
      start = i.header_offset + 30 + name + extra
      content = data[start : start + i.compress_size]
      if i.compress_type == zipfile.ZIP_DEFLATED:
        # a byte more than there should be shows that there is more, and is all that a false size costs
        content = memoryview(zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, i.file_size + 1))
        if zlib.crc32(content) != i.CRC:  # what is stored as it is is not read here
          raise zipfile.BadZipFile(f"{i.filename} has another checksum than its content")
      if i.flag_bits & ENCRYPTED:
        raise zipfile.BadZipFile(f"{i.filename} is encrypted")
      if len(content) != i.file_size:
        raise zipfile.BadZipFile(f"{i.filename} is not {i.file_size} bytes, or compressed in a way not known here")
      if not i.filename.endswith("/"):  # of a folder
        out[i.filename] = content
  except (zipfile.BadZipFile, struct.error, zlib.error, ValueError, OverflowError, NotImplementedError, EOFError) as e:
    raise CheckpointError(source, f"is no whole zip archive: {e}") from e
  return out


def as_file(data: memoryview) -> Any:
  """The bytes of `contents` as a file, from its start."""
  file = data.obj if isinstance(data.obj, mmap.mmap) else io.BytesIO(data)
  file.seek(0)
  return file
