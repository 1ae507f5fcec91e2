"""The run that was not interrupted; helper modules beside the tests can be imported by name."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import run_kit


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    from zootomy.learners.run import train

    folder = tmp_path_factory.mktemp("whole")
    train(run_kit.ALGORITHM, run_kit.config(folder), console=run_kit.QUIET)
    return folder
