"""What a device and its links can do, by which predicted times are: the machine model of device/machine.py."""

from tinygrad.device.machine import CPU, H100, KINDS, Machine, machine_for, machine_of

__all__ = ["CPU", "H100", "KINDS", "Machine", "machine_for", "machine_of"]
