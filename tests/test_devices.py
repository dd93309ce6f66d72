"""The choice of a device, with devices that are not there pretended by name only."""

import pytest
import torch

from softattn_lib.devices import available_devices, pick_device


@pytest.fixture(autouse=True)
def cpu_only(monkeypatch):
    monkeypatch.delenv("SOFTATTN_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_cpu_even_where_a_gpu_is(two_gpus):
    assert pick_device() == torch.device("cpu")


def test_the_environment_variable_is_used_and_an_argument_goes_before_it(two_gpus, monkeypatch):
    monkeypatch.setenv("SOFTATTN_DEVICE", "cuda")
    assert pick_device() == torch.device("cuda")
    assert pick_device("cpu") == torch.device("cpu")


def test_available_devices(two_gpus, monkeypatch):
    assert available_devices() == ["cpu", "cuda:0", "cuda:1"]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert available_devices()[-1] == "mps"
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert pick_device("mps") == torch.device("mps")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps"])
def test_an_absent_device_is_named_with_those_that_are_there(name):
    with pytest.raises(RuntimeError, match=f"name is '{name}', and torch finds only cpu here"):
        pick_device(name)


def test_too_high_a_number(two_gpus):
    with pytest.raises(RuntimeError, match="finds only cpu, cuda:0, cuda:1 here"):
        pick_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta"])
def test_an_unknown_name_is_refused_with_the_legal_ones(name):
    with pytest.raises(ValueError, match=r"name is .*legal are cpu, cuda, cuda:1 .* and mps"):
        pick_device(name)


def test_the_message_says_when_the_environment_variable_is_at_fault(monkeypatch):
    monkeypatch.setenv("SOFTATTN_DEVICE", "gpu")
    with pytest.raises(ValueError, match="SOFTATTN_DEVICE is 'gpu'"):
        pick_device()
