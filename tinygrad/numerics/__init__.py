"""Functions and narrow floats in terms of arithmetic that every processor has."""
