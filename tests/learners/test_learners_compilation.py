"""Compiled programs are kept where nobody chose otherwise, and told of while they are made."""

import functools
from threading import Event, Thread

import jax
import jax.numpy as jnp
import pytest
from zootomy.learners import compilation
from zootomy.learners.compilation import compilations_told, keep_compilations

LEAST = "jax_persistent_cache_min_compile_time_secs"


@pytest.fixture
def kept_in(monkeypatch, tmp_path):
    """Where programs are kept after `keep_compilations`, for what the settings said before."""
    name = "jax_compilation_cache_dir"
    usual, least = jax.config.values[name], jax.config.values[LEAST]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)

    def ask(before):
        jax.config.update(name, before)
        keep_compilations()
        return jax.config.values[name]

    yield ask
    jax.config.update(name, usual)
    jax.config.update(LEAST, least)


def test_the_users_cache_folder_is_the_default(kept_in, tmp_path):
    assert kept_in(None) == str(tmp_path / "zootomy" / "xla")


def test_what_took_a_tenth_of_a_second_is_kept_where_nobody_chose_otherwise(kept_in, monkeypatch):
    """JAX's own bound is a second, below which most programs of a small model stay."""
    jax.config.update(LEAST, 1.0)
    kept_in("/elsewhere")
    assert jax.config.values[LEAST] == 1.0
    monkeypatch.setenv(LEAST.upper(), "1.0")
    kept_in(None)
    assert jax.config.values[LEAST] == 1.0
    monkeypatch.delenv(LEAST.upper())
    jax.config.update(LEAST, 30.0)
    kept_in(None)
    assert jax.config.values[LEAST] == 30.0
    jax.config.update(LEAST, 1.0)
    kept_in(None)
    assert jax.config.values[LEAST] == 0.1


def test_a_folder_that_was_chosen_stays(kept_in, monkeypatch):
    assert kept_in("/elsewhere") == "/elsewhere"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    assert kept_in(None) is None


def test_compilations_are_told_while_they_last():
    told = []
    x = jnp.arange(3.0)
    with compilations_told(told.append):
        jax.jit(lambda x: x * 3 + 1)(x)
        jax.jit(lambda x: x * 5 - 1)(x)
    jax.jit(lambda x: x * 7 - 2)(x)
    assert told == ["compiling", "", "compiling", ""]


def test_compilations_in_two_threads_are_told_until_both_are_done(monkeypatch):
    told, heard = [], {}
    for name in ("event", "event_duration_secs"):
        monkeypatch.setattr(
            jax.monitoring, f"register_{name}_listener", functools.partial(heard.__setitem__, name)
        )
        monkeypatch.setattr(
            jax.monitoring,
            f"unregister_{name.removesuffix('_secs')}_listener",
            lambda listener: None,
        )
    first_is_done, second_began = Event(), Event()

    def second():
        heard["event"](compilation._BEGINS)
        second_began.set()
        first_is_done.wait()
        heard["event_duration_secs"](compilation._ENDS, 1.0)

    with compilations_told(told.append):
        thread = Thread(target=second)
        heard["event"](compilation._BEGINS)
        thread.start()
        second_began.wait()
        heard["event_duration_secs"](compilation._ENDS, 1.0)
        assert told == ["compiling", "compiling"]
        first_is_done.set()
        thread.join()
    assert told == ["compiling", "compiling", ""]
