"""Random inputs for the cases: sizes that all differ and are above 1, tensors in float64."""

import torch

from .checker import Case

SMALLEST, LARGEST = 2, 7
QKV = ("T d", "T d", "T e")  # axes of queries, keys and values


def draw_sizes(generator: torch.Generator, names: str, **given: int) -> dict:
    """Different sizes from 2 to 7 for names that are written with spaces between them.

    Args:
        given: sizes that are not drawn; the others differ from them.

    >>> sizes = draw_sizes(torch.Generator().manual_seed(0), "T d", order=2)
    >>> list(sizes), len(set(sizes.values()))
    (['T', 'd', 'order'], 3)
    """
    drawn = (torch.randperm(LARGEST - SMALLEST + 1, generator=generator) + SMALLEST).tolist()
    free = (size for size in drawn if size not in given.values())
    return {name: next(free) for name in names.split()} | given


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Normal random numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Random numbers between 0 and 1 in float64."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def gate(generator: torch.Generator, sizes: dict) -> torch.Tensor:
    """Numbers between 0.1 and 1, one for each of T tokens."""
    return 0.1 + 0.9 * uniform(generator, sizes["T"])


def log_decay(generator: torch.Generator, sizes: dict) -> torch.Tensor:
    """Logarithms of decays, negative, one for each of T tokens."""
    return -uniform(generator, sizes["T"]) - 0.05


def label(sizes: dict) -> str:
    """The sizes in words.

    >>> label({"T": 5, "d": 3})
    'T = 5, d = 3'
    """
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def tensor_cases(*arguments):
    """Three cases: normal random tensors whose axes are named, and what functions make.

    Args:
        arguments: of the function to be examined, in order: the axes of a tensor, "T d", or a
            function of the generator and the sizes.

    >>> cases = tensor_cases("T d", "T e", lambda generator, sizes: sizes["d"])
    >>> k, v, d = cases(torch.Generator().manual_seed(0))[0].args
    >>> len(k) == len(v), k.shape[1] == d
    (True, True)
    """
    axes = " ".join(x for x in arguments if isinstance(x, str)).split()
    names = " ".join(dict.fromkeys(axes))

    def draw(argument, generator, sizes):
        if isinstance(argument, str):
            return normal(generator, *(sizes[name] for name in argument.split()))
        return argument(generator, sizes)

    def cases(generator):
        sizes = [draw_sizes(generator, names) for _ in range(3)]
        return [Case(label(s), tuple(draw(a, generator, s) for a in arguments)) for s in sizes]

    return cases
