"""What is known of a kernel before anything is decided: strides, dependences, costs."""
