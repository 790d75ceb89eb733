"""Writes torch_zip.pt and torch_legacy.pt, in the two formats of `torch.save` (PyTorch 2.13):
`python test/data/make_torch_files.py`."""

import argparse
from pathlib import Path

import torch

HERE = Path(__file__).parent
layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
with torch.no_grad():
  layer[0].weight.copy_(torch.arange(6.0).reshape(2, 3))
x = torch.arange(24.0).reshape(4, 6)
saved = {
  "model": layer.state_dict(),
  "epoch": 3,
  "views": [x.T, x[1:3, ::2], x],
  "param": torch.nn.Parameter(torch.full((2, 2), 1.5, dtype=torch.bfloat16)),
  "args": argparse.Namespace(lr=0.1),
  "size": x.shape,
  "scalar": torch.tensor(3),
  "empty": torch.zeros(0, 3),
  "types": [
    torch.arange(3).to(t)
    for t in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool, torch.float16, torch.float64)
  ],
}
torch.save(saved, HERE / "torch_legacy.pt", _use_new_zipfile_serialization=False)
saved["types"] += [torch.arange(3).to(t) for t in (torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2)]
torch.save(saved, HERE / "torch_zip.pt")
