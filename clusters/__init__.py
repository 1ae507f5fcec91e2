"""The models of a run on their meshes: passes, updates, weights to the engine, checkpoints."""

from .checkpoint import Checkpoints
from .cluster import Cluster
from .config import ClusterConfig
from .distributed import DistributedConfig, join_processes
from .meshes import MeshShape, mesh_text, parse_mesh
from .optimizer import OptimizerConfig, make_optimizer, make_schedule, optimizer_names
from .outputs import ModelOutputs, Wanted
from .packing import MicroBatch, Rows, pack
from .passes import UpdateResult
from .programs import LossFunction
from .roles import REWARD_MODEL, Role
from .sequences import Sequences
from .shapes import Shape
from .sharding import Placement
from .state import ClusterState
from .stored import read_stored, stored_arrays
from .trained import NonFiniteError
from .trouble import nothing_whole
from .watch import Watch

__all__ = [
    "REWARD_MODEL",
    "Checkpoints",
    "Cluster",
    "ClusterConfig",
    "ClusterState",
    "DistributedConfig",
    "LossFunction",
    "MeshShape",
    "MicroBatch",
    "ModelOutputs",
    "NonFiniteError",
    "OptimizerConfig",
    "Placement",
    "Role",
    "Rows",
    "Sequences",
    "Shape",
    "UpdateResult",
    "Wanted",
    "Watch",
    "join_processes",
    "make_optimizer",
    "make_schedule",
    "mesh_text",
    "nothing_whole",
    "optimizer_names",
    "pack",
    "parse_mesh",
    "read_stored",
    "stored_arrays",
]
