"""Draws what two hints do to a network of two layers: `python examples/placed_graph.py docs/placed_graph.svg`."""

import sys

from tinygrad import OPEN, Mesh, P, Tensor, propagate
from tinygrad.sharding import visualize

mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("dp", "tp"))
x, w1, w2 = (Tensor.zeros(*shape).contiguous().realize() for shape in ((64, 256), (256, 512), (512, 256)))

x = x.constrain(P("dp", OPEN))  # the batch is cut
h = (x @ w1).relu()
h = h.constrain(P(OPEN, "tp"))  # what is hidden, too
y = h @ w2

propagate(y, mesh=mesh)
print(visualize(y, sys.argv[1] if len(sys.argv) > 1 else None, graph=True))
