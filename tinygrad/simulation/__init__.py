"""What a step takes on a cluster that is not here (docs/simulation.md)."""

from tinygrad.device.cluster import Chip, Cluster, Level
from tinygrad.simulation.machine import ClusterError, cluster_of
from tinygrad.simulation.report import Simulation
from tinygrad.simulation.session import simulate

__all__ = ["Chip", "Cluster", "ClusterError", "Level", "Simulation", "cluster_of", "simulate"]
