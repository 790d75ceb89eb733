"""Damaged files: `python -m extra.fuzz_files --seconds 600`.

Files of each format that the package reads (GGUF, safetensors, PyTorch's two, zip, tar, ONNX) are damaged at random:
bits and bytes changed, lengths and counts replaced by extreme ones, parts cut, repeated, zeroed, or taken from another
file. What is read from each must be a typed error, or tensors that
- are the bytes that the file says they are, or the gguf package's values of them, where another reader can tell
  (safetensors, and GGUF's blocks of every format), and
- need no more memory than a small multiple of the file's size, measured as Python and numpy allocate.

A crash or a hang ends the process; the seed was printed before (`--verbose`), `--seed N --count 1` runs it again.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import signal
import struct
import sys
import tarfile
import tempfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from extra.write_gguf import write_gguf
from tinygrad import Tensor
from tinygrad.nn import state
from tinygrad.nn.block_formats import FORMATS as BLOCK_FORMATS
from tinygrad.nn.gguf import GGUF, GGUFError
from tinygrad.nn.onnx import OnnxError, OnnxRunner

ROOT = Path(__file__).parents[1]
WATCHED = 120  # seconds for one file: what takes longer hangs
SPARE = 8 << 20  # bytes that reading any file may take: modules, tables, the compiler's work
TIMES = 64  # bytes for each byte of the file: a quantised tensor has 8 times its bytes as float32, and is copied
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Format:
  """`make(folder)` gives the bytes of an undamaged file; `read(path)` its arrays, or raises one of `errors`."""

  name: str
  make: Callable[[Path], bytes]
  read: Callable[[Path], Arrays]
  errors: tuple[type[Exception], ...]


def arrays_of(found: Any) -> Arrays:
  """The tensors anywhere in what a file holds, by path, as arrays."""
  return {name: t.numpy() for name, t in state.get_state_dict(found).items()}


# ---------------------------------------------------------------- undamaged files


def some(shape: tuple[int, ...], dtype: str = "f4") -> np.ndarray:
  return (np.arange(np.prod(shape), dtype=np.float64).reshape(shape) % 97 - 40).astype(dtype)


def make_gguf(folder: Path) -> bytes:
  metadata = {"general.architecture": "llama", "a.list": [1, 2, 3], "a.names": ["x", "yy"], "a.float": 0.5, "ok": True}
  tensors = {"w.weight": some((6, 8)), "half": some((3, 5)), "q.weight": some((4, 64))}
  write_gguf(folder / "x.gguf", metadata, tensors, {"half": "F16", "q.weight": "Q8_0"})
  return (folder / "x.gguf").read_bytes()


def make_gguf_blocks(folder: Path) -> bytes:
  """A tensor of every format of blocks: random ones, as any bytes are."""
  path, random = folder / "blocks.gguf", np.random.RandomState(0)
  writer = gguf.GGUFWriter(path, "llama")
  for name in BLOCKS:
    form = BLOCK_FORMATS[name]
    raw = random.randint(0, 256, (2, 256 // form.weights * form.nbytes)).astype(np.uint8)
    writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[name])
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path.read_bytes()


def make_safetensors(folder: Path) -> bytes:
  tensors = {"a": Tensor(some((7, 9))), "b": Tensor(some((5,), "i8")), "c.d": Tensor(some((2, 3, 4), "f2"))}
  state.safe_save(tensors, folder / "x.safetensors", {"of": "a model"})
  return (folder / "x.safetensors").read_bytes()


def make_zip(folder: Path) -> bytes:
  out = io.BytesIO()
  with zipfile.ZipFile(out, "w") as z:
    for name, kind in (("a/stored", zipfile.ZIP_STORED), ("a/deflated", zipfile.ZIP_DEFLATED)):
      z.writestr(name, some((300,), "u1").tobytes(), kind)
  return out.getvalue()


def make_tar(folder: Path) -> bytes:
  out = io.BytesIO()
  with tarfile.open(fileobj=out, mode="w") as tar:
    for name in ("one", "two"):
      info = tarfile.TarInfo(name)
      info.size = 700
      tar.addfile(info, io.BytesIO(some((700,), "u1").tobytes()))
  return out.getvalue()


def make_onnx(folder: Path) -> bytes:
  from onnx import TensorProto, helper, numpy_helper

  nodes = [
    helper.make_node("MatMul", ["x", "w"], ["h"]),
    helper.make_node("Add", ["h", "b"], ["s"]),
    helper.make_node("Relu", ["s"], ["r"]),
    helper.make_node("Reshape", ["r", "to"], ["y"]),
    helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0),
    helper.make_node("Softmax", ["y"], ["p"], axis=-1),
  ]
  given = {"w": some((4, 6)), "b": some((6,)), "to": np.array([3, -1], np.int64)}
  inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])]
  outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z", "p")]
  weights = [numpy_helper.from_array(x, name) for name, x in given.items()]
  graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
  made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
  return made


def run_onnx(path: Path) -> Arrays:
  model = OnnxRunner(path)
  inputs = {}
  for name, spec in model.graph_inputs.items():
    dims = [2 if isinstance(n, str) else n for n in spec.shape or ()]
    if len(dims) > 8 or np.prod([float(n) for n in dims]) > 1 << 16 or min(dims, default=0) < 0:
      return {}  # what to give it is the user's choice
    inputs[name] = Tensor.ones(*dims).cast(spec.dtype or "float32")
  return {name: y.numpy() for name, y in model(inputs).items() if isinstance(y, Tensor)}


BLOCKS = [
  name for name in BLOCK_FORMATS if name in gguf.GGMLQuantizationType.__members__ and name not in ("F32", "F16")
]
CHECKPOINT = (state.CheckpointError,)
FORMATS = [
  Format("gguf", make_gguf, lambda p: arrays_of(state.gguf_load(p)[1]), (GGUFError,)),
  Format("safetensors", make_safetensors, lambda p: arrays_of(state.safe_load(p)), CHECKPOINT),
  Format("torch zip", lambda _: (ROOT / "test/data/torch_zip.pt").read_bytes(),
         lambda p: arrays_of(state.torch_load(p)), CHECKPOINT),
  Format("torch legacy", lambda _: (ROOT / "test/data/torch_legacy.pt").read_bytes(),
         lambda p: arrays_of(state.torch_load(p)), CHECKPOINT),
  Format("zip", make_zip, lambda p: arrays_of(state.zip_extract(p)), CHECKPOINT),
  Format("tar", make_tar, lambda p: arrays_of(state.tar_extract(p)), CHECKPOINT),
  Format("onnx", make_onnx, run_onnx, (OnnxError,)),
  Format("gguf blocks", make_gguf_blocks, lambda p: arrays_of(state.gguf_load(p)[1]), (GGUFError,)),
]  # fmt: skip


# ---------------------------------------------------------------- damage

EXTREME = [0, 1, 2, 7, 8, 127, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
           1 << 40, (1 << 60) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]  # fmt: skip

LARGE = (1 << 25) - 1  # of bytes or values, for a file of some thousand; the machine could make room for as many


def damage(rng: random.Random, data: bytes, other: bytes) -> bytes:
  """One change; most are near the beginning, where headers are, or near the end, where zip archives have theirs."""
  out, size = bytearray(data), len(data)
  near = rng.choice([64, 512, size])
  at = rng.randrange(min(near, size)) if rng.random() < 0.7 else size - 1 - rng.randrange(min(near, size))
  span = min(rng.choice([1, 2, 4, 8, 30, 200]), size - at)
  match rng.randrange(10):
    case 0:
      out[at] ^= 1 << rng.randrange(8)
    case 1:
      out[at] = rng.randrange(256)
    case 2 | 3:
      width, number = rng.choice([1, 2, 4, 8]), rng.choice([*EXTREME, size, size - at])
      out[at : at + width] = struct.pack("<Q", number)[:width]
    case 4:
      del out[at:]
    case 5:
      del out[at : at + span]
    case 6:
      out[at:at] = out[at : at + span]
    case 7:
      out[at : at + span] = bytes(span)
    case 8:
      start = rng.randrange(len(other))
      out[at : at + span] = other[start : start + span]
    case 9:  # an instruction of pickles, with its number: to keep a value, to make bytes
      code, width = rng.choice([(b"r", 4), (b"X", 4), (b"\x96", 8), (b"\x8d", 8), (b"\x8b", 4)])
      out[at : at + 1 + width] = code + struct.pack("<Q", rng.choice(EXTREME) & LARGE)[:width]
  return bytes(out)


class Wrong(BaseException):
  """What a damaged file should not do. No Exception, so that no reader takes it for its own."""


class Fuzzer:
  """Undamaged files in `folder`, and their arrays."""

  def __init__(self, folder: Path) -> None:
    self.folder = folder
    self.whole = [f.make(folder) for f in FORMATS]
    self.kinds = {"error": 0, "read": 0, "as before": 0}

  def case(self, seed: int) -> tuple[Format, bytes]:
    rng = random.Random(seed)
    number = seed % len(FORMATS)
    data = self.whole[number]
    for _ in range(rng.choice([1, 1, 1, 2, 3, 5])):
      if data:
        data = damage(rng, data, rng.choice(self.whole))
    return FORMATS[number], data

  def run(self, seed: int) -> None:
    """Raises: Wrong, with what is wrong."""
    form, data = self.case(seed)
    path, limit = self.folder / "damaged", SPARE + TIMES * len(data)
    path.write_bytes(data)
    found, peak = read_watched(form, path)
    if peak > limit:  # modules and kernels, which a process makes once, some of them behind, are not made again
      found, peak = read_watched(form, path)
    self.kinds["error" if found is None else "as before" if data in self.whole else "read"] += 1
    if peak > limit:
      raise Wrong(f"{form.name}: {peak} bytes were allocated for a file of {len(data)} (the limit is {limit})")
    self.compare(form, data, found or {})

  def compare(self, form: Format, data: bytes, found: Arrays) -> None:
    """Raises: Wrong where another reader of the format finds other tensors."""
    if found and form.name.startswith("gguf"):
      compare_blocks(self.folder / "damaged", form.name, found)
    if not found or form.name != "safetensors":
      return
    header = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + header]).items():
      if name != "__metadata__":
        lo, hi = entry["data_offsets"]
        if found[name].tobytes() != data[8 + header + lo : 8 + header + hi]:
          raise Wrong(f"{form.name}: {name} has other bytes than the file")


def read_watched(form: Format, path: Path) -> tuple[Arrays | None, int]:
  """(The arrays of a file, None where it is refused; bytes that were allocated at most.) Raises: Wrong where it is
  refused without a word, or in another way than the format's errors; and if it takes too long."""
  tracemalloc.start()
  signal.alarm(WATCHED)
  found: Arrays | None = None
  try:
    found = form.read(path)
  except form.errors as e:
    if not str(e):
      raise Wrong(f"{form.name}: {type(e).__name__} without a word") from e
  except Exception as e:
    raise Wrong(f"{form.name}: {type(e).__name__}: {e}") from e
  finally:
    signal.alarm(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
  return found, peak


def compare_blocks(path: Path, form: str, found: Arrays) -> None:
  """Raises: Wrong where the gguf package has other values of the blocks of a file."""
  g = GGUF(path)
  for name, t in g.tensors.items():
    if t.type.name in BLOCKS:
      raw = np.frombuffer(g.data, np.uint8, t.nbytes, t.offset).reshape(*t.shape[:-1], -1)
      with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[t.type.name])
      if not np.array_equal(want.reshape(t.shape), found[name], equal_nan=True):
        raise Wrong(f"{form}: {name} ({t.type.name}) has other values than the gguf package's")


def hangs(number: int, frame: Any) -> None:
  raise Wrong(f"it takes more than {WATCHED} s")


def fuzz(
  seeds: Iterator[int], verbose: bool = False, keep_on: bool = False
) -> tuple[int, list[tuple[int, str]], dict[str, int]]:
  """(files read, [(seed, what is wrong)], how they ended)."""
  done, wrong = 0, list[tuple[int, str]]()
  before = signal.signal(signal.SIGALRM, hangs)
  try:
    with tempfile.TemporaryDirectory() as folder:
      fuzzer = Fuzzer(Path(folder))
      for seed in seeds:
        if verbose:
          print(seed, flush=True)
        try:
          fuzzer.run(seed)
        except Wrong as e:
          wrong.append((seed, str(e)))
          if not keep_on:
            break
        done += 1
    return done, wrong, fuzzer.kinds
  finally:
    signal.signal(signal.SIGALRM, before)


def parser_of(doc: str | None) -> argparse.ArgumentParser:
  """What the fuzzers' commands have in common."""
  parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seconds", type=float, default=60)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--count", type=int)
  parser.add_argument("--keep-on", action="store_true", help="tell every seed that is wrong, not the first only")
  return parser


def seeds_of(args: argparse.Namespace) -> Iterator[int]:
  """As many as are asked for, and as there is time for."""
  end, seed = time.monotonic() + args.seconds, args.seed
  while time.monotonic() < end and (args.count is None or seed < args.seed + args.count):
    yield seed
    seed += 1


def told(wrong: Sequence[tuple[int, str]], summary: str) -> int:
  """The exit status, when all has been said."""
  for seed, said in wrong:
    print(f"seed {seed}: {said}")
  print(f"{summary}, {len(wrong)} wrong")
  return 1 if wrong else 0


def main(argv: list[str] | None = None) -> int:
  parser = parser_of(__doc__)
  parser.add_argument("--verbose", action="store_true", help="print each seed before its file is read")
  names = [f.name for f in FORMATS]
  parser.add_argument("--formats", nargs="*", default=names, choices=names, help="only the seeds whose files are these")
  args = parser.parse_args(argv)
  seeds = (seed for seed in seeds_of(args) if names[seed % len(names)] in args.formats)
  done, wrong, kinds = fuzz(seeds, args.verbose, args.keep_on)
  return told(wrong, f"{done} files from seed {args.seed}: {kinds}")


if __name__ == "__main__":
  sys.exit(main())
