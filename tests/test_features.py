"""Powers of an inner product as inner products of powers."""

import itertools
import math
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from softattn_lib import (
    Polynomial,
    features_of_degree,
    kronecker_power,
    num_features,
    order_slices,
    polynomial_features,
    symmetric_power,
    taylor,
)

POLYNOMIALS = {
    "taylor4": taylor(4),
    "taylor0": taylor(0),
    "odd": taylor(3),
    "gaps and signs": Polynomial((0.5, 0, -2, 0, 0.25)),
    "pure power": Polynomial((0, 0, 0, 1)),
    "zero": Polynomial((0,)),
}


def pair(d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 7, d, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n", range(6))
@pytest.mark.parametrize("d", range(1, 6))
def test_both_powers_have_the_dot_product_of_the_power(d, n):
    x, y = pair(d)
    expected = (x * y).sum(-1) ** n
    size = (x * y).abs().sum(-1) ** n
    for power in (kronecker_power, symmetric_power):
        product = (power(x, n) * power(y, n)).sum(-1)
        assert ((product - expected).abs() <= 1e-13 * size).all()
    assert kronecker_power(x, n).shape == (3, 7, d**n)
    assert symmetric_power(x, n).shape == (3, 7, math.comb(d + n - 1, n))


@pytest.mark.parametrize(("d", "n"), [(1, 4), (2, 3), (3, 4), (4, 2), (5, 5)])
def test_entries_one_by_one(d, n):
    """Every entry by its definition, in lexicographic order of its indices."""
    x = pair(d)[0, 0, 0]
    every = [
        math.prod(x[i].item() for i in index) for index in itertools.product(range(d), repeat=n)
    ]
    torch.testing.assert_close(kronecker_power(x, n), x.new_tensor(every))
    once = []
    for index in itertools.combinations_with_replacement(range(d), n):
        repeats = math.factorial(n)
        for count in Counter(index).values():
            repeats //= math.factorial(count)
        once.append(math.sqrt(repeats) * math.prod(x[i].item() for i in index))
    torch.testing.assert_close(symmetric_power(x, n), x.new_tensor(once))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("d", range(1, 6))
@pytest.mark.parametrize("polynomial", POLYNOMIALS.values(), ids=list(POLYNOMIALS))
def test_polynomial_features(polynomial, d, packed):
    q, k = pair(d)
    query = polynomial_features(q, polynomial, side="query", packed=packed)
    key = polynomial_features(k, polynomial, side="key", packed=packed)
    width = sum(features_of_degree(d, n, packed) for n in polynomial.powers)
    assert query.shape == key.shape == (3, 7, width)
    size = sum(abs(c) * (q * k).abs().sum(-1) ** n for n, c in enumerate(polynomial.coefficients))
    error = ((query * key).sum(-1) - polynomial((q * k).sum(-1))).abs()
    assert (error <= 1e-13 * size).all()


@pytest.mark.parametrize("packed", [True, False])
def test_the_key_side_is_free_of_coefficients(packed):
    """So a state built from keys fits every polynomial of the same powers."""
    x = pair(3)[0]
    one, other = Polynomial((1, 0, 2, -3)), Polynomial((7, 0, -1, 0.5))
    keys = [polynomial_features(x, p, side="key", packed=packed) for p in (one, other)]
    assert torch.equal(*keys)
    parts = [kronecker_power(x, n) for n in (0, 2, 3)] if not packed else None
    if parts:
        assert torch.equal(keys[0], torch.cat(parts, -1))
    queries = [polynomial_features(x, p, side="query", packed=packed) for p in (one, other)]
    assert not torch.equal(*queries)


@pytest.mark.parametrize("packed", [True, False])
def test_order_slices_cut_the_orders_apart(packed):
    q, k = pair(4)
    polynomial = Polynomial((0.5, 0, -2, 0.25))
    slices = order_slices(4, polynomial, packed=packed)
    assert list(slices) == [0, 2, 3]
    query = polynomial_features(q, polynomial, "query", packed)
    key = polynomial_features(k, polynomial, "key", packed)
    for n, part in slices.items():
        product = (query[..., part] * key[..., part]).sum(-1)
        expected = polynomial.coefficients[n] * (q * k).sum(-1) ** n
        torch.testing.assert_close(product, expected)
    assert list(slices.values())[-1].stop == query.shape[-1]


SIZES = {  # d: packed and full sizes of the orders 0..N for N = 1, 2, 3, 4
    4: ((5, 5), (15, 21), (35, 85), (70, 341)),
    8: ((9, 9), (45, 73), (165, 585), (495, 4681)),
    16: ((17, 17), (153, 273), (969, 4369), (4845, 69905)),
    64: ((65, 65), (2145, 4161), (47905, 266305), (814385, 17043521)),
}


@pytest.mark.parametrize(("d", "sizes"), list(SIZES.items()))
def test_num_features(d, sizes):
    for order, (packed, full) in enumerate(sizes, start=1):
        assert num_features(d, order) == packed == math.comb(d + order, order)
        assert num_features(d, order, packed=False) == full
        assert packed == sum(features_of_degree(d, n) for n in range(order + 1))
    assert num_features(d, 0) == num_features(d, 0, packed=False) == 1
    assert num_features(16, 10) == 5311735


class CountOperations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.products, self.names = 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.names.add(function.overloadpacket.__name__)
        if function.overloadpacket is torch.ops.aten.mul:
            self.products += out.numel()
        return out


def test_each_monomial_costs_one_multiplication_and_no_table_of_indices():
    x = pair(5)[0, 0, 0]
    with CountOperations() as count:
        monomials = polynomial_features(x, taylor(6), side="key")
    assert count.products == monomials.numel() - 1 - 5  # the constant and x itself cost none
    assert not count.names & {"index", "index_select", "gather", "take", "index_put"}


@pytest.mark.parametrize("function", [kronecker_power, symmetric_power])
def test_dtype_and_gradient(function):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert function(pair(3)[0].to(dtype), 3).dtype == dtype
    x = pair(3)[0, 0, :2].clone().requires_grad_()
    for n in range(4):
        assert torch.autograd.gradcheck(lambda x, n=n: function(x, n) + 0 * x.sum(), x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: kronecker_power(x, -1), "n must be an integer >= 0, got -1"),
        (lambda x: symmetric_power(x, 1.5), "n must be an integer >= 0, got 1.5"),
        (lambda x: symmetric_power(x, True), "n must be an integer >= 0, got True"),
        (
            lambda x: polynomial_features(x, taylor(2), side="keys"),
            '"query" or "key", got \'keys\'',
        ),
        (lambda x: num_features(0, 2), "d must be >= 1, got 0"),
        (lambda x: num_features(4, -1), "order must be an integer >= 0, got -1"),
        (lambda x: kronecker_power(x, 40), "order 40 of a vector with d=3 .* 2e.07"),
        (lambda x: polynomial_features(x, taylor(40), "key", packed=False), "order 1[0-9] .* d=3"),
        (lambda x: symmetric_power(x.expand(99, 3).T.reshape(3, 99), 8), "order 8 .* d=99"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_only_floating_point_has_powers(dtype):
    """Integers would lose the square roots and the 1/n! without a word."""
    x = torch.ones(3, dtype=dtype)
    for call in (
        lambda: kronecker_power(x, 2),
        lambda: symmetric_power(x, 2),
        lambda: polynomial_features(x, taylor(2), side="query"),
        lambda: polynomial_features(x, taylor(2), side="key", packed=False),
    ):
        with pytest.raises(TypeError, match=f"x must be floating point, got {dtype}"):
            call()
