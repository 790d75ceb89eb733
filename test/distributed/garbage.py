"""A Tensor in a cycle that still has to be computed, then random scripts, in several processes whose garbage
collectors would come at other times: `garbage.py FIRST LAST`; with `--automatic` that of process 1 does, and process
0's never."""

import gc
import os
import sys
from pathlib import Path

from tinygrad import Tensor, distributed

sys.path[:0] = [str(Path(__file__).parents[1] / "laws"), str(Path(__file__).parents[1])]
import scripts  # noqa: E402


class Cycle:
  def __init__(self, value):
    self.itself, self.value = self, value


distributed.initialize(5)  # the largest meshes have nine
gc.set_threshold(*((50, 2, 2) if distributed.process_index() else (20000, 50, 50)))
if "--automatic" in sys.argv and distributed.process_index():
  gc.enable()
memory = Tensor.zeros(8).shard(tuple(f"CPU:{i}" for i in range(10))).contiguous().realize()
Cycle(memory + 1)  # a value that has to be computed before what it reads is overwritten, if it is alive
kept = [[] for _ in range(2000)]  # collectors look where much is made
assert memory.assign(memory + 2).tolist() == [2.0] * 8
for seed in range(*map(int, sys.argv[1:3])):
  if (failure := scripts.attempt(scripts.written(seed))) is not None:
    print(f"seed {seed}: {failure.kind}")
    sys.stdout.flush()
    os._exit(1)  # the other would wait at the end
print("all agree")
