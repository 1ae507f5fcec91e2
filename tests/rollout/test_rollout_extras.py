"""Ray without Ray: the message names the extra."""

import pytest
from zootomy import ZootomyError
from zootomy.rollout import extras
from zootomy.rollout.transfer import TransferConfig, make_transfer


def test_ray_is_an_extra(monkeypatch):
    def absent(name):
        raise extras.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.importlib.metadata, "version", absent)
    with pytest.raises(ZootomyError) as error:
        make_transfer(TransferConfig(backend="ray"), other_process=True)
    assert str(error.value) == (
        'ray is not installed. Install it with `pip install "zootomy[ray]"`. It is needed between '
        "hosts only."
    )


def test_a_package_that_does_not_import_says_why(monkeypatch):
    monkeypatch.setattr(extras, "check_extra", lambda module: module)

    def broken(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(extras.importlib, "import_module", broken)
    with pytest.raises(ZootomyError, match="Uninstall torchvision, torchaudio, torchcodec"):
        extras.import_extra("vllm")
