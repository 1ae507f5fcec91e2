"""The architecture as a test: imports inside the package only go down."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = {
    "registry": 0,
    "blocks": 1,
    "models": 2,
    "tasks": 2,
    "monitor": 2,
    "rollout": 3,
    "clusters": 4,
    "learners": 5,
    "commands": 6,
}
# The files of the root stand above all rooms.
TOP = 7
FILES = sorted([*ROOT.glob("*.py"), *(p for room in FLOORS for p in (ROOT / room).rglob("*.py"))])
MAX_LINES = 320


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a file imports from, itself included; absolute self-imports are refused."""
    package = path.relative_to(ROOT).parts[:-1]
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "zootomy" for alias in node.names), path
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level == 0:
            assert (node.module or "").split(".")[0] != "zootomy", f"{path} imports absolutely"
            continue
        base = package[: len(package) - node.level + 1]
        target = (*base, *(node.module.split(".") if node.module else ()))
        # `from .. import x` names the room in the alias.
        rooms |= {target[0]} if target else {alias.name for alias in node.names}
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_go_down(path):
    mine = room_of(path)
    for room in imported_rooms(path) - {mine}:
        assert room in FLOORS, f"{path} imports {room}, which is no room of the package"
        # Rooms on one floor do not know each other.
        floor = FLOORS.get(mine, TOP)
        assert FLOORS[room] < floor, f"{path} imports {room} from floor {floor}"


def test_the_ground_floor_knows_neither_jax_nor_models():
    for path in (ROOT / "registry").glob("*.py"):
        modules = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and node.level == 0
                else []
            )
        }
        assert not modules & {"jax", "flax", "optax", "numpy"}, path


def test_nothing_in_the_root_shadows_the_package():
    assert not (ROOT / "zootomy").exists()
    assert not (ROOT / "conftest.py").exists()
    assert not (ROOT / "tests" / "__init__.py").exists()


def test_every_package_on_disk_is_shipped():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    on_disk = {"zootomy"} | {
        ".".join(("zootomy", *init.parent.relative_to(ROOT).parts))
        for room in FLOORS
        for init in (ROOT / room).rglob("__init__.py")
    }
    assert sorted(listed) == sorted(on_disk)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_has_one_subject(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES
