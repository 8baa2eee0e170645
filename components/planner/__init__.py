"""What fits: a trainer layout (Eq 21), the split into samplers and trainers (Eq 22), a campaign on this machine."""

from components.planner.balance import Split, balance, split
from components.planner.capacity import CapacityReport, Plan, StageBytes, capacity
from components.planner.device import DeviceReport, device
from components.planner.host import HostReport, host
from components.planner.require import assess, require
from components.planner.search import layouts
from components.planner.shape import ModelShape
from components.planner.simulate import Kind, Simulation, simulate
from components.planner.storage import StorageReport, storage

__all__ = [
    "CapacityReport",
    "DeviceReport",
    "HostReport",
    "Kind",
    "ModelShape",
    "Plan",
    "Simulation",
    "Split",
    "StageBytes",
    "StorageReport",
    "assess",
    "balance",
    "capacity",
    "device",
    "host",
    "layouts",
    "require",
    "simulate",
    "split",
    "storage",
]
