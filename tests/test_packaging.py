"""The wheel and the editable install hold the same modules, and the core needs no torch."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import zootomy

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "ray", "vllm", "reasoning_gym", "math_verify", "qwix", "grain", "matplotlib")


def modules_in_source():
    rooms = [p for p in ROOT.iterdir() if (p / "__init__.py").is_file()]
    files = [ROOT / "__init__.py", ROOT / "cli.py", *(f for r in rooms for f in r.rglob("*.py"))]
    return {f"zootomy/{file.relative_to(ROOT)}" for file in files}


def test_this_checkout_is_what_is_imported():
    assert Path(zootomy.__file__).parent == ROOT


def test_the_wheel_holds_the_same_modules(tmp_path):
    # A copy, so that the build leaves nothing behind in the checkout.
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "runs", "site", "build", "dist", "*.egg-info", "data")
    shutil.copytree(ROOT, source, ignore=ignored)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet",
         "-w", tmp_path, source],
        check=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("zootomy-*.whl")
    held = zipfile.ZipFile(wheel).namelist()
    assert {name for name in held if name.endswith(".py")} == modules_in_source()
    assert "zootomy/py.typed" in held


def test_the_core_imports_no_extra():
    code = (
        "import sys, zootomy, zootomy.learners.run, zootomy.cli;"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_maths_alone_imports_no_model_library():
    code = "import sys, zootomy; print([m for m in ('flax', 'optax', 'orbax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
