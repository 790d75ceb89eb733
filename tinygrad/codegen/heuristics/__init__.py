"""How a nest is to be computed: a list of primitives, proposed from what analysis says and what a target is like."""
