"""How many pairs a state can hold, without any training: random keys, random values, one read.

P keys on a sphere are written together with P symbols (one-hot values), and each key asks once for
its own. The matching key has the largest weight, or should have; all others interfere. A symbol is
answered right if it gets the largest share of the read, so that no positive factor of the read
matters, and hence no denominator. Experiment and theory are ours, not the paper's.
"""

import math

import torch
import torch.nn.functional as F
from numpy.polynomial.legendre import leggauss

from softattn_lib.kernels import CosineKernel, FeatureMapKernel, IdentityKernel, as_kernel
from softattn_lib.parallel import parallel_attention

SYMBOLS = 32
LEAST = {"pairs": 1, "sets": 1, "d": 2, "symbols": 2}
ANGLES = 200  # points of the integral over the angle between two keys
MAX_WIDTH = 1000  # of keys, for which that many points are enough


def random_pairs(
    pairs: int, d: int, *, symbols=SYMBOLS, length=1.0, sets=1, generator: torch.Generator
):
    """Random keys of one length, each with a random symbol.

    Args:
        pairs: P, how many pairs a set has.
        d: width of a key, >= 2.
        symbols: how many different values there are, >= 2.
        length: of every key, so that its score with itself is length ** 2 (at scale 1).
        sets: how many independent sets.
        generator: where the randomness comes from.

    Returns:
        (keys, values): float64, (sets, P, d) uniform on the sphere, and (sets, P, symbols) one-hot.

    Raises:
        ValueError: a count below its least value, or a length that is not positive and finite.

    Example:
        >>> keys, values = random_pairs(3, d=8, length=2.0, generator=torch.Generator())
        >>> keys.norm(dim=-1).round(decimals=9).tolist(), values.shape
        ([[2.0, 2.0, 2.0]], torch.Size([1, 3, 32]))
    """
    _check(length, pairs=pairs, d=d, symbols=symbols, sets=sets)
    keys = torch.randn(sets, pairs, d, generator=generator, dtype=torch.float64)
    answers = torch.randint(symbols, (sets, pairs), generator=generator)
    return length * F.normalize(keys, dim=-1), F.one_hot(answers, symbols).double()


def recalled(kernel, keys: torch.Tensor, values: torch.Tensor, *, queries=None) -> torch.Tensor:
    """Which of the pairs attention with this kernel reads back right.

    All pairs are written, then each key asks for its own. A kernel with features does this with a
    state of constant size; the parallel form, used here, gives the same numbers.

    Args:
        kernel: a polynomial, a kernel, or a kernel's name.
        keys, values: (..., P, d) and (..., P, symbols), as from `random_pairs`.
        queries: only the first so many keys ask, >= 1; None for all.

    Returns:
        (..., queries), bool.

    Raises:
        ValueError: queries below 1.

    Example:
        >>> keys, values = torch.tensor([[1.0, 0.0], [0.8, 0.6]]), torch.eye(2)
        >>> recalled("identity", keys, values), recalled("relu", keys, values)
        (tensor([True, True]), tensor([True, True]))
    """
    if queries is not None:
        _check_counts(queries=queries)
    read, _ = parallel_attention(
        keys[..., :queries, :],
        keys,
        values,
        kernel=kernel,
        normalizer="none",
        scale=1.0,
        is_causal=False,
        return_state=False,
    )
    return read.argmax(-1) == values[..., :queries, :].argmax(-1)


def recall_accuracy(
    kernel, d: int, pairs: int, *, queries=None, generator: torch.Generator, **options
) -> float:
    """Share of random pairs that attention with this kernel reads back right.

    Args:
        kernel, queries: as in `recalled`.
        d, pairs, generator, options: as in `random_pairs`.

    Raises:
        ValueError: as `random_pairs`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> recall_accuracy("exp", d=16, pairs=8, length=2.0, sets=50, generator=generator)
        1.0
    """
    keys, values = random_pairs(pairs, d, generator=generator, **options)
    return recalled(kernel, keys, values, queries=queries).double().mean().item()


def capacity(
    kernel,
    d: int,
    *,
    accuracy=0.9,
    questions=1000,
    most=4096,
    generator: torch.Generator,
    **options,
) -> float:
    """How many random pairs are read back with this accuracy, measured.

    The number of pairs doubles until fewer are right; then the last two are interpolated.

    Args:
        kernel: as in `recalled`.
        d, generator, options: as in `random_pairs`.
        accuracy: what share has to be right, above 0 and at most 1.
        questions: how many keys ask at each number of pairs, of as many sets as that takes, >= 1.
        most: no more pairs than these are tried, >= 1.

    Returns:
        The number of pairs; inf where the last number tried, a power of two, is still right.

    Raises:
        ValueError: as `random_pairs`, and for an accuracy out of its range.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> 10 < capacity("identity", d=8, generator=generator) < 20
        True
    """
    _check_counts(questions=questions, most=most)
    if not 0 < accuracy <= 1:
        raise ValueError(f"accuracy must be above 0 and at most 1, got {accuracy!r}")
    pairs, share, before = 1, 1.0, 1.0
    while share >= accuracy:
        if pairs > most:
            return math.inf
        sets, before = max(1, questions // pairs), share
        share = recall_accuracy(
            kernel, d, pairs, sets=sets, queries=questions, generator=generator, **options
        )
        pairs *= 2
    return pairs / 4 * 2 ** ((before - accuracy) / (before - share))


def interference(kernel, d: int, *, length=1.0) -> float:
    """Mean squared weight of a random other key, in units of the matching key's.

    E[w(length^2 cos)^2] / w(length^2)^2 over the angle of two uniform directions. The pure power n
    has E[cos^(2n)] = 1 * 3 * ... * (2n - 1) / (d (d + 2) ... (d + 2n - 2)).

    Args:
        kernel: a polynomial, a kernel, or a kernel's name; its weight has to be a function of the
            angle alone.
        d, length: as in `random_pairs`; d at most 1000.

    Raises:
        ValueError: as `random_pairs`, for an element-wise feature map, and where the matching
            key's weight is zero or overflows.

    Example:
        >>> from softattn_lib import Polynomial
        >>> round(interference(Polynomial((0, 0, 1)), d=8), 12)  # 3 / (8 * 10)
        0.0375
    """
    kernel = as_kernel(kernel)
    _check(length, d=d)
    if d > MAX_WIDTH:
        raise ValueError(f"d must be at most {MAX_WIDTH}, got {d}")
    is_map = isinstance(kernel, FeatureMapKernel)
    if is_map and not isinstance(kernel, IdentityKernel | CosineKernel):
        raise ValueError(f"kernel {kernel!r} must give weights that depend on the angle alone")
    nodes, shares = map(torch.from_numpy, leggauss(ANGLES))
    angle = (nodes + 1) * (math.pi / 2)
    density = shares * angle.sin() ** (d - 2)
    matching = torch.ones(1, dtype=torch.float64)
    weights = kernel.weight(length**2 * torch.cat([angle.cos(), matching]))
    if not (weights[-1].isfinite() and weights[-1] != 0):
        raise ValueError(f"a key of length {length} has the weight {weights[-1]} for itself")
    relative = weights[:-1] / weights[-1]
    return ((relative**2 * density).sum() / density.sum()).item()


def _check_counts(**counts) -> None:
    for name, value in counts.items():
        if not (isinstance(value, int) and value >= LEAST.get(name, 1)):
            raise ValueError(
                f"{name} must be a whole number >= {LEAST.get(name, 1)}, got {value!r}"
            )


def _check(length, **counts) -> None:
    _check_counts(**counts)
    if not 0 < length < math.inf:
        raise ValueError(f"length must be a number > 0, got {length!r}")
