"""What looks at a computation from outside, when it is asked to: nothing here takes part in one."""
