"""Blocks of third parties: a user's file, and installed packages with an entry point."""

import sys
import warnings

import pytest
from zootomy.registry import ZootomyError, describe, get, load_entry_points, load_plugin, names

pytestmark = pytest.mark.usefixtures("clean_registry")

BLOCK = """
from zootomy import register

@register("whitening", "{name}")
def {name}(advantages, mask, *, factor: float = 2.0):
    '''Of a plug-in.'''
    return factor * advantages
"""


def test_a_file_gives_its_blocks_names(tmp_path):
    file = tmp_path / "my-blocks.py"
    file.write_text(BLOCK.format(name="from_file"))
    module = load_plugin(file)
    assert get("whitening", "from_file")(3.0, None) == 6.0
    assert sys.modules[module].__file__ == str(file)
    assert describe("whitening", "from_file").where == f"{file}:4"


def test_loaded_twice_runs_once(tmp_path):
    file = tmp_path / "once.py"
    file.write_text(BLOCK.format(name="once"))
    (tmp_path / "link.py").symlink_to(file)
    # A second run would be a duplicate name.
    assert load_plugin(file) == load_plugin(str(file)) == load_plugin(tmp_path / "link.py")


def test_two_files_of_one_name_are_two_modules(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "blocks.py").write_text(BLOCK.format(name=f"of_{folder}"))
    first = load_plugin(tmp_path / "one" / "blocks.py")
    assert load_plugin(tmp_path / "two" / "blocks.py") != first
    assert {"of_one", "of_two"} <= set(names("whitening"))


def test_a_missing_file(tmp_path):
    file = tmp_path / "gone.py"
    with pytest.raises(ZootomyError) as error:
        load_plugin(file)
    assert (
        str(error.value) == f"The plug-in {str(file)!r} does not exist; give a path to a .py file."
    )


def test_a_file_that_is_not_python(tmp_path):
    file = tmp_path / "blocks.txt"
    file.write_text("x = 1")
    with pytest.raises(ZootomyError) as error:
        load_plugin(file)
    assert str(error.value) == f"The plug-in {str(file)!r} is no .py file; give a path to one."


def test_a_file_that_raises_leaves_nothing_and_can_be_mended(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text(BLOCK.format(name="half_done") + "\nraise RuntimeError('no luck')\n")
    modules = set(sys.modules)
    with pytest.raises(ZootomyError) as error:
        load_plugin(file)
    assert str(error.value) == (
        f"The plug-in {str(file)!r} failed while it was loaded: RuntimeError: no luck"
    )
    assert isinstance(error.value.__cause__, RuntimeError)
    assert "half_done" not in names("whitening")
    assert {name for name in set(sys.modules) - modules if "zootomy_plugin" in name} == set()

    file.write_text(BLOCK.format(name="half_done"))
    load_plugin(file)
    assert "half_done" in names("whitening")


def test_a_file_with_a_wrong_block_is_named(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(BLOCK.format(name="wrong").replace("whitening", "whitenin"))
    with pytest.raises(ZootomyError) as error:
        load_plugin(file)
    assert str(error.value).startswith(
        f"The plug-in {str(file)!r} failed while it was loaded: Unknown slot 'whitenin'. Did you "
        "mean 'whitening'? Known: "
    )


def test_a_file_with_a_syntax_error(tmp_path):
    file = tmp_path / "typo.py"
    file.write_text("def f(:\n")
    with pytest.raises(ZootomyError, match="failed while it was loaded: SyntaxError: "):
        load_plugin(file)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with one entry point on the path."""

    def install(module: str, text: str):
        (tmp_path / f"{module}.py").write_text(text)
        information = tmp_path / f"{module}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n"
        )
        (information / "entry_points.txt").write_text(f"[zootomy.blocks]\n{module} = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    for name in ("zoo_test_good", "zoo_test_bad"):
        sys.modules.pop(name, None)


def test_an_installed_package_registers_by_entry_point(install):
    install("zoo_test_good", BLOCK.format(name="installed"))
    assert "zoo_test_good" in load_entry_points()
    assert get("whitening", "installed")(1.0, None) == 2.0


def test_a_broken_package_warns_and_leaves_the_rest_alone(install):
    install("zoo_test_bad", "raise RuntimeError('no luck')")
    install("zoo_test_good", BLOCK.format(name="installed"))
    with pytest.warns(UserWarning, match="plug-in") as caught:
        loaded = load_entry_points()
    assert [str(warning.message) for warning in caught] == [
        "The plug-in 'zoo_test_bad' (zoo_test_bad) could not be loaded: RuntimeError: no luck"
    ]
    assert "zoo_test_good" in loaded
    assert "zoo_test_bad" not in loaded
    assert "installed" in names("whitening")


def test_without_packages_nothing_is_loaded():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_entry_points() == []
