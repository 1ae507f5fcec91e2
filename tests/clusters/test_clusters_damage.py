"""Checkpoints that were damaged, could not be written, or are the best: found, named, kept."""

import json
import os
import shutil
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest
from zootomy import ZootomyError
from zootomy.clusters import Checkpoints
from zootomy.clusters.seal import SEAL

LIKE = {"a": jnp.zeros(600)}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with the checkpoints 1, 2 and 3, of which each test damages a copy."""
    folder = tmp_path_factory.mktemp("written")
    with Checkpoints(folder, keep=None, asynchronous=True) as checkpoints:
        for step in (1, 2, 3):
            numbers = jax.random.normal(jax.random.key(step), 600)
            checkpoints.save(step, {"a": numbers}, {"step": step})
    return folder


def data_file(folder):
    """The largest file of a checkpoint: the arrays' own bytes."""
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "truncated": (truncate, r"its file arrays/\S+ has \d+ bytes, and was written with \d+"),
    "flipped": (flip, r"its file arrays/\S+ has other contents than were written"),
    "missing": (os.remove, r"its file arrays/\S+ is missing"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_newest_one_is_named_and_the_one_before_is_used(written, tmp_path, kind):
    folder = tmp_path / "copy"
    shutil.copytree(written, folder)
    spoil, words = DAMAGES[kind]
    spoil(data_file(folder / "3"))
    with Checkpoints(folder) as checkpoints:
        found, broken = checkpoints.newest_whole()
        assert (found, list(broken)) == (2, [3])
        with pytest.warns(
            UserWarning, match=rf"The checkpoint of step 3 in \S+ is damaged: {words}"
        ):
            arrays, record = checkpoints.restore(LIKE)
        assert record == {"step": 2}
        assert bool((arrays["a"] == jax.random.normal(jax.random.key(2), 600)).all())
        with pytest.raises(ZootomyError, match=rf"step 3 in \S+ is damaged: {words}. Choose"):
            checkpoints.restore(LIKE, step=3)
        # Out of the way, its step can be written again.
        assert checkpoints.set_aside(3).name == "3.damaged"
        assert checkpoints.steps() == [1, 2]
        checkpoints.save(3, LIKE, {"step": 3})
        assert checkpoints.newest_whole() == (3, {})


def test_damage_to_the_record_and_to_the_checksums_is_seen_too(written, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(written, folder)
    flip(folder / "3" / "record" / "metadata")
    truncate(folder / "2" / SEAL)
    with Checkpoints(folder) as checkpoints:
        assert checkpoints.newest_whole() == (
            1,
            {
                3: "its file record/metadata has other contents than were written",
                2: "its checksums.json is unreadable",
            },
        )
        (folder / "1" / SEAL).unlink()
        with pytest.raises(ZootomyError) as error:
            checkpoints.restore(LIKE)
        assert str(error.value) == (
            f"Every checkpoint in {folder} is damaged: of that of step 3, its file record/metadata "
            "has other contents than were written; of that of step 2, its checksums.json is "
            "unreadable; of that of step 1, its checksums.json is missing. Bring back a copy of "
            "one, or begin the run again in another folder."
        )


def test_the_best_stay_beside_the_newest(tmp_path):
    with Checkpoints(tmp_path, keep=2, keep_best=1) as checkpoints:
        # Ties go to the newer one; a step without a score, or with NaN, is never the best.
        for step, score in enumerate([0.5, 0.75, 0.75, None, float("nan"), 0.1], start=1):
            checkpoints.save(step, {"a": jnp.zeros(2)}, {}, score=score)
        assert checkpoints.steps() == [3, 5, 6]
        assert checkpoints.best() == 3
        assert not (tmp_path / "unfinished").exists()
        assert json.loads((tmp_path / "3" / SEAL).read_text())["score"] == 0.75
    with pytest.raises(ZootomyError, match="keep_best must be 0 or more, got -1"):
        Checkpoints(tmp_path, keep_best=-1)


def in_a_process(tmp_path, script):
    """Run a script with two whole checkpoints in FOLDER; returns what it printed."""
    preamble = f"""
        import os, resource, sys
        import jax.numpy as jnp, numpy as np
        from zootomy import ZootomyError
        from zootomy.clusters import Checkpoints
        FOLDER = {str(tmp_path / "run")!r}
        BIG = {{"a": jnp.asarray(np.random.default_rng(0).random(400_000, np.float32))}}
        checkpoints = Checkpoints(FOLDER, keep=1, asynchronous=True)
        checkpoints.save(1, {{"a": jnp.arange(4)}}, {{"step": 1}})
        checkpoints.wait()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(preamble) + textwrap.dedent(script)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    with Checkpoints(tmp_path / "run") as checkpoints:
        assert checkpoints.newest_whole() == (1, {})
        assert checkpoints.record() == {"step": 1}
    return ended.stdout


def test_a_full_disk_is_a_sentence_and_leaves_the_old_ones(tmp_path):
    # No file may grow beyond 200 kB, which the system reports as it does a full disk.
    said = in_a_process(
        tmp_path,
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        checkpoints.save(2, BIG, {})
        try:
            checkpoints.save(3, BIG, {})
        except ZootomyError as error:
            print(error)
        checkpoints.close()
        """,
    )
    assert said.startswith(
        f"The checkpoint of step 2 could not be written to {tmp_path / 'run'}: the disk is full ("
    )
    assert said.endswith(
        "MiB free). The earlier ones are as they were (steps 1); mend that, and resume the run.\n"
    )


def test_no_permission_is_a_sentence_and_leaves_the_old_ones(tmp_path, monkeypatch):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, {"a": jnp.arange(4)}, {"step": 1})

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        # Root may write anywhere, so it is Orbax that is refused here.
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints._orbax, "save", refuse)
            with pytest.raises(ZootomyError) as error:
                checkpoints.save(2, {"a": jnp.arange(4)}, {})
        assert str(error.value) == (
            f"The checkpoint of step 2 could not be written to {tmp_path}: permission is denied. "
            "The earlier ones are as they were (steps 1); mend that, and resume the run."
        )
        assert checkpoints.newest_whole() == (1, {})
        checkpoints.save(2, {"a": jnp.arange(4)}, {"step": 2})
        assert checkpoints.record() == {"step": 2}
    (tmp_path / "file").write_text("")
    with pytest.raises(ZootomyError, match="for checkpoints cannot be made: Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    said = in_a_process(
        tmp_path,
        """
        for path, _, files in os.walk(FOLDER):
            os.chmod(path, 0o555)
        try:
            checkpoints.save(2, BIG, {})
            checkpoints.wait()
        except ZootomyError as error:
            print(error)
        for path, _, files in os.walk(FOLDER):
            os.chmod(path, 0o755)
        checkpoints.close()
        """,
    )
    assert "could not be written to" in said
    assert "permission is denied. " in said


def test_arrays_can_be_asked_for_by_shape_and_place_alone(tmp_path):
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    four = Mesh(jax.devices()[:4], ("x",))
    eight = Mesh(jax.devices(), ("y",))
    numbers = jax.device_put(jnp.arange(16.0), NamedSharding(four, PartitionSpec("x")))
    there = NamedSharding(eight, PartitionSpec("y"))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"a": numbers}, {})
        like = {"a": jax.ShapeDtypeStruct((16,), jnp.float32, sharding=there)}
        arrays, _ = checkpoints.restore(like)
    assert arrays["a"].sharding == there
    assert arrays["a"].tolist() == list(range(16))
