"""A cluster as far as it is looked at before work begins."""

from __future__ import annotations

from types import SimpleNamespace


def ray(*nodes: tuple[float, float]) -> SimpleNamespace:
    """Return a cluster of nodes with CPUs and GPUs, and one that is dead."""
    found = [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in nodes]
    total = {"CPU": sum(cpus for cpus, _ in nodes), "GPU": sum(gpus for _, gpus in nodes)}
    dead = {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 99.0}}
    return SimpleNamespace(nodes=lambda: [*found, dead], cluster_resources=lambda: total)
