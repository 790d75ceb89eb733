"""Placements by predicted time: a linear program over the ways to cut each value and each op (docs/auto.md)."""
