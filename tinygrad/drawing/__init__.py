"""Pictures of placements and of placed graphs, as SVG documents that need nothing else; loaded when asked for."""
