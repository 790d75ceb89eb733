"""Placements from hints: cuts travel along factors, forward and backward, to a fixed point (docs/solver.md)."""
