"""Slots, the decorator that names a block, and specs: the ground floor, without arrays."""

from .contract import BlockInfo
from .documentation import Documentation, read_documentation
from .errors import (
    ContractError,
    DuplicateNameError,
    UnknownNameError,
    ZootomyError,
    closest,
    unknown_name,
)
from .hyperparameters import Hyperparameter, check_value, type_text
from .plugins import load_entry_points, load_plugin
from .registry import (
    bind,
    check_spec,
    describe,
    find,
    get,
    names,
    register,
    setting,
)
from .slots import Slot, add_slot, plugin_slots, slot, slots
from .spec import BlockSpec, block

__all__ = [
    "BlockInfo",
    "BlockSpec",
    "ContractError",
    "Documentation",
    "DuplicateNameError",
    "Hyperparameter",
    "Slot",
    "UnknownNameError",
    "ZootomyError",
    "add_slot",
    "bind",
    "block",
    "check_spec",
    "check_value",
    "closest",
    "describe",
    "find",
    "get",
    "load_entry_points",
    "load_plugin",
    "names",
    "plugin_slots",
    "read_documentation",
    "register",
    "setting",
    "slot",
    "slots",
    "type_text",
    "unknown_name",
]
