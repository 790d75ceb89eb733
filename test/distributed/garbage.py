"""Random scripts in several processes, whose garbage collectors would come at other times: `garbage.py FIRST LAST`;
with `--automatic` they do."""

import gc
import os
import sys
from pathlib import Path

from tinygrad import distributed

sys.path[:0] = [str(Path(__file__).parents[1] / "laws"), str(Path(__file__).parents[1])]
import scripts  # noqa: E402

distributed.initialize(5)  # the largest meshes have nine
gc.set_threshold(*((50, 2, 2) if distributed.process_index() else (20000, 50, 50)))
if "--automatic" in sys.argv:
  gc.enable()
for seed in range(*map(int, sys.argv[1:3])):
  if (failure := scripts.attempt(scripts.written(seed))) is not None:
    print(f"seed {seed}: {failure.kind}")
    sys.stdout.flush()
    os._exit(1)  # the other would wait at the end
print("all agree")
