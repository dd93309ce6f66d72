"""The one place where a device is chosen: the CPU, unless somebody asks for another."""

import os

import torch

KINDS = ("cpu", "cuda", "mps")


def available_devices():
    """Names of the devices that torch can use here.

    Returns:
        list of str, the CPU first: ``"cpu"``, ``"cuda:0"``, ``"cuda:1"``, ..., ``"mps"``.

    >>> available_devices()[0]
    'cpu'
    """
    names = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return names + ["mps"] * torch.backends.mps.is_available()


def pick_device(name=None):
    """The device to compute on: the CPU unless another one is asked for.

    Args:
        name: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``. None means what the environment
            variable ``SOFTATTN_DEVICE`` names, and the CPU where it is not set.

    Returns:
        torch.device.

    Raises:
        ValueError: the name is none of these.
        RuntimeError: the name is legal, and this machine or this build of torch has no such device.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    asked, source = name, "name"
    if asked is None:
        asked, source = os.environ.get("SOFTATTN_DEVICE") or "cpu", "SOFTATTN_DEVICE"
    try:
        device = torch.device(asked)
    except RuntimeError:
        device = None
    if device is None or device.type not in KINDS:
        raise ValueError(f"{source} is {asked!r}; legal are cpu, cuda, cuda:1 (any number) and mps")
    here = available_devices()
    if str(device) not in here and f"{device}:0" not in here:
        raise RuntimeError(f"{source} is {asked!r}, and torch finds only {', '.join(here)} here")
    return device
