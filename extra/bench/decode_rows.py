"""What a decoding step costs, by how many texts it serves: of the embedded model, and of a random llama of 100M
parameters (extra/bench/llm.py).

    python -m extra.bench.decode_rows [--rows 1,2,4,8,16,64] [--formats embedded,F32,Q8_0] [--files FOLDER] [--exact]

A row: the format, and for each number of texts milliseconds of a step (and of processor time, of all threads, which
wait for each other by looking), then the tokens a second over those of one text. It is the most that a server can gain
by serving many at once (extra/serve_soak.py measures one).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from extra.bench.llm import FORMATS, model_file
from tinygrad.apps.checkpoint import GGUFCheckpoint
from tinygrad.apps.layout import Layout
from tinygrad.apps.llm import EMBEDDED
from tinygrad.apps.model import LanguageModel
from tinygrad.nn.gguf import GGUF

CONTEXT, START = 512, 64  # tokens


def steps(model: LanguageModel, rows: int, seconds: float) -> tuple[float, float]:
  """(seconds, seconds of processor time) of a step, the least of those that fit."""
  best, least, position = 1e9, 1e9, START
  until = time.perf_counter() + seconds
  while position < START + 5 or (time.perf_counter() < until and position < model.c.context):
    at, worked = time.perf_counter(), time.process_time()
    model.decode([5] * rows, [position] * rows)
    took, worked = time.perf_counter() - at, time.process_time() - worked
    if position >= START + 3:  # all is compiled then
      best, least = min(best, took), min(least, worked)
    position += 1
  return best, least


def main() -> None:
  p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  p.add_argument("--rows", default="1,2,4,8,16,64", help="texts at once (1,2,4,8,16,64)")
  p.add_argument("--formats", default="embedded,F32,Q8_0", help=f"embedded, {', '.join(FORMATS)}")
  p.add_argument("--files", type=Path, metavar="FOLDER", help="where the models lie, or are to be kept")
  p.add_argument("--exact", action="store_true", help="round no activations")
  p.add_argument("--seconds", type=float, default=2, help="for each number of texts (2)")
  args = p.parse_args()
  counts = [int(n) for n in args.rows.split(",")]
  with tempfile.TemporaryDirectory() as temporary:
    folder = args.files or Path(temporary)
    for kind in args.formats.split(","):
      path = EMBEDDED if kind == "embedded" else model_file(kind, folder, None)
      source = GGUFCheckpoint(GGUF(str(path)))
      model = LanguageModel(source, Layout.parse("1"), CONTEXT, slots=max(counts), exact=args.exact)
      print(f"{kind:9}", end="", flush=True)
      one = None
      for n in counts:
        took, worked = steps(model, n, args.seconds)
        one = one or took / n
        print(f"  {n:3d}: {took * 1e3:6.2f} ({worked * 1e3:6.2f}) ms {one * n / took:5.2f}x", end="", flush=True)
      print()


if __name__ == "__main__":
  main()
