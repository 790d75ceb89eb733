"""One of two processes of PyTorch that train data-parallel (`data_parallel.py` starts them): `NAME STEPS`."""

import json
import sys

import torch.distributed
import torch.nn.functional as F
import work_torch
from data_parallel import measured
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
name, steps = sys.argv[1], int(sys.argv[2])
if name == "conv_train":
  model, x, y = work_torch.Conv(), work_torch.array(64, 1, 28, 28), work_torch.labels(10, 64)
  optimizer, classes = torch.optim.Adam(model.parameters(), lr=1e-3), 10
else:
  model, x, y = work_torch.GPT(), work_torch.labels(512, 4, 128), work_torch.labels(512, 4, 128)
  optimizer, classes = torch.optim.AdamW(model.parameters(), lr=1e-3), 512
parallel = DistributedDataParallel(model)
step = work_torch.training(optimizer, lambda: F.cross_entropy(parallel(x).reshape(-1, classes), y.reshape(-1)))
seconds = measured(step.run, steps)
if torch.distributed.get_rank() == 0:
  print(json.dumps(seconds), flush=True)
torch.distributed.destroy_process_group()
