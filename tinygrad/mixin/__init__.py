"""The public methods of `Tensor`, a theme a file; each mixin builds on those before it.

`base` -> `movement` -> `elementwise` -> `casts` -> `math` -> `creation` -> `reduce` -> `indexing` -> `random` ->
`linalg` -> `nn` -> `differentiation`. `data`: what tensors are made of.
"""
