"""Random inputs for the cases: sizes that all differ and are above 1, tensors in float64."""

import torch

from .checker import Case

SMALLEST, LARGEST = 2, 7


def draw_sizes(generator: torch.Generator, names: str = "T d e") -> dict:
    """Different sizes from 2 to 7 for names that are written with spaces between them.

    >>> sizes = draw_sizes(torch.Generator().manual_seed(0))
    >>> list(sizes), len(set(sizes.values()))
    (['T', 'd', 'e'], 3)
    """
    names = names.split()
    order = torch.randperm(LARGEST - SMALLEST + 1, generator=generator) + SMALLEST
    return dict(zip(names, order[: len(names)].tolist(), strict=True))


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Normal random numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Random numbers between 0 and 1 in float64."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def label(sizes: dict) -> str:
    """The sizes in words.

    >>> label({"T": 5, "d": 3})
    'T = 5, d = 3'
    """
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def qkv_cases(*extra, count: int = 3, names: str = "T d e"):
    """Cases with q (T, d), k (T, d), v (T, e), and then what `extra` makes of generator and sizes.

    >>> make = qkv_cases(lambda generator, sizes: 2, count=1)
    >>> q, k, v, two = make(torch.Generator().manual_seed(0))[0].args
    >>> q.shape == k.shape, len(k) == len(v), two
    (True, True, 2)
    """

    def cases(generator):
        made = []
        for _ in range(count):
            sizes = draw_sizes(generator, names)
            T, d, e = (sizes[name] for name in "Tde")
            tensors = [normal(generator, T, width) for width in (d, d, e)]
            more = [make(generator, sizes) for make in extra]
            made.append(Case(label(sizes), (*tensors, *more)))
        return made

    return cases
