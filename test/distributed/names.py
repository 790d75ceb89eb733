"""What a process says of names and of its part, for the tests."""

import sys
import tempfile
from pathlib import Path

import numpy as np

from tinygrad import Device, DeviceError, ShardError, Sharding, Tensor, distributed, nn

distributed.initialize(2)
distributed.initialize(2)  # once is enough
rank, count = distributed.process_index(), distributed.process_count()


def say(*words):
  print(*words, flush=True)


say(rank, "of", count)
say(*Device.local("CPU"))
say(Device.count("CPU"), "devices")
rows = Sharding([f"CPU:{i}" for i in range(4)], 0)
mine = np.arange(4, dtype=np.float32).reshape(2, 2) + 4 * rank
x = Tensor.from_process_local(mine, rows)
say("part", np.concatenate([p.numpy() for p in x.shards]).tolist())
say("its own", sum(p.sum().item() for p in x.shards))  # in another order in each process, if it likes
say("sum", x.sum().item())
file = Path(tempfile.gettempdir()) / f"{Path(sys.argv[0]).stem}.{Device.world.statuses[0].pid}.safetensors"
nn.state.safe_save({"x": x * 1}, file)
say("saved", nn.state.safe_load(file)["x"].tolist())
if rank == 0:
  file.unlink()
for wrong in (
  lambda: Tensor.ones(3).to("CPU:4").realize(),
  lambda: Tensor.from_process_local(mine[:1].repeat(3, 0), rows, shape=(8, 2)),
  lambda: Device.local("NULL"),
):
  try:
    wrong()
  except (DeviceError, ShardError) as e:
    say(str(e).replace("(4, 8)", "(0, 4)"))
