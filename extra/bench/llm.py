"""The language model beside llama.cpp, on one machine, in turn: a random llama of 100M parameters in several formats.

    python -m extra.bench.llm --peer PYTHON [--formats F32,Q4_K] [--rounds 8] [--files FOLDER] [--threads 2]

PYTHON is an interpreter with llama-cpp-python; without one only this project is measured, in F32, F16 and Q8_0, for it
is llama.cpp that makes the other files. Each model is loaded by a process of either side, which takes orders; these
alternate, and of each kind of work the fastest is what counts, so that whatever else the machine does matters little.

  decode      tokens/s, one token at a time, at positions from 64 on
  prefill     tokens/s of a prompt of 512
  first       seconds from the start of a process to the first token after a prompt of 8: nothing compiled before; all
  memory      resident MiB, less an idle interpreter's with the package imported, after a second of decoding, over the
              file's and the KV cache's: of the process that compiled (with the compiler in memory), of one that found
              all compiled, and llama.cpp's; --parts prints what they consist of
  2 devices   decode on two devices of one thread each, over decode on one device of two
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
CONTEXT, PROMPT, START, STEPS = 1024, 512, 64, 8
FORMATS = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_0": 2, "Q4_K": 14, "Q6_K": 18}  # llama.cpp's numbers of file types
SIZES = {"dim": 768, "layers": 12, "heads": 12, "kv": 4, "ffn": 2048, "vocab": 16384}


def prompt_ids(count: int) -> list[int]:
  return [7919 * i * (i + 3) % SIZES["vocab"] for i in range(1, count + 1)]


# ---------------------------------------------------------------- the files


def write_model(path: Path, kind: str) -> None:
  """Normal numbers, each matrix such that what it gives is about as large as what it takes."""
  from extra.write_gguf import write_gguf

  s, head = SIZES, SIZES["dim"] // SIZES["heads"]
  rng = np.random.default_rng(0)

  def matrix(rows: int, columns: int) -> np.ndarray:
    return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(columns**-0.5)

  tensors = {"token_embd.weight": matrix(s["vocab"], s["dim"]), "output.weight": matrix(s["vocab"], s["dim"])}
  shapes = {
    "attn_q": (s["dim"], s["dim"]), "attn_k": (s["kv"] * head, s["dim"]), "attn_v": (s["kv"] * head, s["dim"]),
    "attn_output": (s["dim"], s["dim"]), "ffn_gate": (s["ffn"], s["dim"]), "ffn_up": (s["ffn"], s["dim"]),
    "ffn_down": (s["dim"], s["ffn"]),
  }  # fmt: skip
  for i in range(s["layers"]):
    tensors |= {f"blk.{i}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
  types = dict.fromkeys(tensors, kind)
  norms = ("output_norm", *(f"blk.{i}.{name}_norm" for i in range(s["layers"]) for name in ("attn", "ffn")))
  tensors |= {f"{name}.weight": np.ones(s["dim"], np.float32) for name in norms}
  metadata = {
    "general.architecture": "llama", "llama.context_length": 2 * CONTEXT, "llama.embedding_length": s["dim"],
    "llama.block_count": s["layers"], "llama.feed_forward_length": s["ffn"], "llama.attention.head_count": s["heads"],
    "llama.attention.head_count_kv": s["kv"], "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": head, "llama.rope.freq_base": 10000.0, "llama.vocab_size": s["vocab"],
    "tokenizer.ggml.model": "none",
  }  # fmt: skip
  write_gguf(path, metadata, tensors, types)


def model_file(kind: str, folder: Path, peer: str | None) -> Path:
  """The file of a format; llama.cpp makes one of what numpy does not."""
  path = folder / f"{kind}.gguf"
  if path.exists():
    return path
  if kind in ("F32", "F16", "Q8_0"):
    write_model(path, kind)
    return path
  assert peer is not None
  whole = model_file("F32", folder, peer)
  subprocess.run([peer, __file__, "--quantise", f"{whole}:{path}:{kind}"], check=True, capture_output=True)
  return path


def quantise(job: str) -> None:
  from llama_cpp import llama_cpp

  whole, path, kind = job.split(":")
  how = llama_cpp.llama_model_quantize_default_params()
  how.ftype, how.pure, how.nthread = FORMATS[kind], True, 2
  if llama_cpp.llama_model_quantize(whole.encode(), path.encode(), ctypes.byref(how)):
    raise SystemExit(f"llama.cpp cannot write {path}")


# ---------------------------------------------------------------- processes that take orders


def resident() -> float:
  """MiB."""
  pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
  return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def parts() -> dict[str, float]:
  """Resident MiB by what lies there."""
  found, name = dict.fromkeys(("model", "libraries", "other files", "heap and anonymous"), 0.0), ""
  for line in Path("/proc/self/smaps").read_text().splitlines() if sys.platform == "linux" else ():
    first, *rest = line.split()
    if first == "Rss:":
      found[name] += int(rest[0]) / 1024
    elif not first.endswith(":"):
      path = rest[4] if len(rest) > 4 else ""
      kinds = {
        "model": path.endswith(".gguf"),
        "libraries": ".so" in path or "/bin/" in path,
        "other files": "/" in path,
      }
      name = next((kind for kind, fits in kinds.items() if fits), "heap and anonymous")
  return found


class Ours:
  def __init__(self, path: str, shard: str):
    from tinygrad.apps.checkpoint import GGUFCheckpoint
    from tinygrad.apps.layout import Layout
    from tinygrad.apps.model import LanguageModel
    from tinygrad.nn.gguf import GGUF

    self.idle, self.before = resident(), parts()
    self.model = LanguageModel(GGUFCheckpoint(GGUF(path)), Layout.parse(shard), CONTEXT)

  def prefill(self, ids: list[int]) -> np.ndarray:
    return self.model.prefill(ids)

  def decode(self, token: int, pos: int) -> np.ndarray:
    return self.model.decode([token], [pos])[0]

  @property
  def cache(self) -> float:
    return sum(c.nbytes for layer in self.model.layers for c in (layer.keys, layer.values)) / 2**20


class LlamaCpp:
  def __init__(self, path: str, threads: str):
    from llama_cpp import Llama

    self.idle, self.before, n = resident(), parts(), int(threads)
    self.model = Llama(
      path, n_ctx=CONTEXT, n_batch=PROMPT, n_ubatch=PROMPT, n_threads=n, n_threads_batch=n, verbose=False
    )
    self.cache = 2 * 2 * SIZES["layers"] * SIZES["kv"] * SIZES["dim"] // SIZES["heads"] * CONTEXT / 2**20

  def prefill(self, ids: list[int]) -> np.ndarray:
    self.model.reset()
    self.model.eval(ids)
    return np.array(self.model._ctx.get_logits()[: SIZES["vocab"]])

  def decode(self, token: int, pos: int) -> np.ndarray:
    assert self.model.n_tokens == pos
    self.model.eval([token])
    return np.array(self.model._ctx.get_logits()[: SIZES["vocab"]])


def worker(side: str, path: str, how: str) -> None:
  """Reads an order a line, and answers with a line of JSON."""
  m = {"ours": Ours, "llama.cpp": LlamaCpp}[side](path, how)
  logits = m.prefill(prompt_ids(8))
  print(json.dumps(int(logits.argmax())), flush=True)
  for line in sys.stdin:
    out: Any = None
    if line == "prefill\n":
      start = time.perf_counter()
      m.prefill(prompt_ids(PROMPT))
      out = time.perf_counter() - start
    elif line == "decode\n":  # the fastest of some tokens
      m.prefill(prompt_ids(START))
      out = []
      for i in range(STEPS):
        start = time.perf_counter()
        m.decode(5, START + i)
        out.append(time.perf_counter() - start)
      out = min(out)
    elif line == "memory\n":
      m.prefill(prompt_ids(START))
      start, at = time.perf_counter(), START
      while time.perf_counter() < start + 1 and at < CONTEXT:
        m.decode(5, at)
        at += 1
      out = (resident() - m.idle, m.cache, {k: [m.before[k], v] for k, v in parts().items()})
    print(json.dumps(out), flush=True)


@dataclass(frozen=True, slots=True)
class Side:
  """A process that has a model, and how long its first token took from its start, in seconds."""

  process: subprocess.Popen[str]
  first: float

  @staticmethod
  def start(side: str, python: str, path: Path, how: str, cache: Path, threads: int) -> Side:
    settings = {"CACHEDIR": str(cache), "PYTHONPATH": str(ROOT), "CPU_THREADS": str(threads)}
    if side != "ours":
      settings.pop("PYTHONPATH")
    command, begun = [python, __file__, "--worker", f"{side}:{path}:{how}"], time.perf_counter()
    process = subprocess.Popen(
      command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
      env=os.environ | settings, cwd=cache,
    )  # fmt: skip
    answer(process)
    return Side(process, time.perf_counter() - begun)

  def ask(self, order: str) -> Any:
    assert self.process.stdin is not None
    print(order, file=self.process.stdin, flush=True)
    return answer(self.process)

  def end(self) -> None:
    self.process.communicate()


def answer(process: subprocess.Popen[str]) -> Any:
  assert process.stdout is not None
  if not (line := process.stdout.readline()):
    raise SystemExit(f"{' '.join(map(str, process.args[1:]))} ended with {process.wait()}; run it alone to see why")
  return json.loads(line)


# ---------------------------------------------------------------- the measurement


def measure(
  kind: str, path: Path, peer: str | None, rounds: int, threads: int, temporary: Path, split: bool = False
) -> None:
  cache = temporary / kind
  cache.mkdir()
  ours = Side.start("ours", sys.executable, path, "1", cache, threads)
  cold = ours.first
  ours.ask("decode"), ours.ask("prefill")  # compiled from here on, by the compiler's better tier, too
  ours.ask("decode"), ours.ask("prefill")
  warm = []
  for _ in range(2):
    again = Side.start("ours", sys.executable, path, "1", cache, threads)
    again.ask("decode"), again.ask("prefill")
    later, _, lies = again.ask("memory")
    again.end()
    warm.append(again.first)
  two = Side.start("ours", sys.executable, path, str(threads), cache, 1)
  sides = {"ours": ours, "cut": two}
  if peer is not None:
    sides["llama.cpp"] = Side.start("llama.cpp", peer, path, str(threads), temporary, threads)
  best: dict[tuple[str, str], float] = {}
  for _ in range(rounds):
    for order in ("decode", "prefill"):
      for name, side in sides.items():
        if (name, order) != ("cut", "prefill"):
          took = side.ask(order)
          best[name, order] = min(took, best.get((name, order), took))
  used, kv, _ = ours.ask("memory")
  theirs_used = sides["llama.cpp"].ask("memory")[0] if peer is not None else 0.0
  for side in sides.values():
    side.end()
  file = path.stat().st_size / 2**20
  rate = {order: {n: count / best[n, order] for n in sides if (n, order) in best} for order, count in COUNTS.items()}
  row = [f"{kind:5}"]
  for order in COUNTS:
    theirs = rate[order].get("llama.cpp")
    row.append(f"{order} {rate[order]['ours']:7.1f}")
    row.append(f"{theirs:7.1f} {rate[order]['ours'] / theirs:5.2f}" if theirs else f"{'-':>13}")
  row.append(f"first {cold:5.2f} {min(warm):5.2f}")
  row.append(
    f"memory {used:6.1f} {later:6.1f} / {file + kv:6.1f} = {used / (file + kv):4.2f} {later / (file + kv):4.2f}"
    + (f" {theirs_used / (file + kv):4.2f}" if peer else "")
  )
  row.append(f"{threads} devices {rate['decode']['cut'] / rate['decode']['ours']:4.2f}")
  print("  ".join(row), flush=True)
  if split:
    each = (f"{k} {before:.1f} -> {after:.1f}" for k, (before, after) in lies.items())
    print(f"      MiB, idle and with all compiled: {', '.join(each)}; KV cache {kv:.1f} of the last", flush=True)


COUNTS = {"decode": 1, "prefill": PROMPT}


def main() -> None:
  p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  p.add_argument("--peer", metavar="PYTHON", help="an interpreter with llama-cpp-python")
  p.add_argument("--formats", help=f"default: all of {','.join(FORMATS)} that can be made")
  p.add_argument("--rounds", type=int, default=8)
  p.add_argument("--threads", type=int, default=2)
  p.add_argument("--files", type=Path, metavar="FOLDER", help="where the models lie, or are to be kept")
  p.add_argument("--parts", action="store_true", help="print what resident memory consists of")
  p.add_argument("--worker", help=argparse.SUPPRESS)
  p.add_argument("--quantise", help=argparse.SUPPRESS)
  args = p.parse_args()
  if args.worker:
    return worker(*args.worker.split(":"))
  if args.quantise:
    return quantise(args.quantise)
  formats = (
    args.formats.split(",") if args.formats else [f for f in FORMATS if args.peer or f in ("F32", "F16", "Q8_0")]
  )
  with tempfile.TemporaryDirectory() as temporary:
    folder = args.files or Path(temporary)
    folder.mkdir(exist_ok=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {args.threads} threads; tokens/s: ours, llama.cpp's, ratio")
    for kind in formats:
      measure(
        kind, model_file(kind, folder, args.peer), args.peer, args.rounds, args.threads, Path(temporary), args.parts
      )


if __name__ == "__main__":
  main()
