"""Does a kernel keep its promises? A check for our own kernels and for anybody's new one."""

import torch

from .chunked import chunked_attention
from .kernels import as_kernel
from .parallel import parallel_attention
from .recurrent import recurrent_attention

FORMS = {
    "parallel": parallel_attention,
    "recurrent": recurrent_attention,
    "chunked": lambda *qkv, **options: chunked_attention(*qkv, chunk_size=3, **options),
}


class KernelCheckError(AssertionError):
    """A kernel broke one of its promises; the message says which, where and by how much."""


def check_kernel(kernel, *, d: int = 3, seed: int = 0) -> list[str]:
    """Check a kernel on random float64 inputs whose sizes all differ.

    1. inputs: q and k are not changed in place;
    2. features: as many as it says, and their dot products are its weights;
    3. sign: if it says is_nonnegative, no weight is negative;
    4. causality: later tokens do not change earlier outputs;
    5. forms: parallel, recurrent and chunked agree;
    6. splits: a sequence cut anywhere and continued from the state gives the same numbers;
    7. gradients: torch.autograd.gradcheck for q, k and v in each form.

    A kernel without features is spared 2, 5 and 6 and has its gradients tried in the parallel form.

    Args:
        kernel: a Polynomial, a kernel object or a kernel's name.
        d: width of queries and keys to try.
        seed: for the random inputs.

    Returns:
        The names of the checks that passed.

    Raises:
        KernelCheckError: at the first broken promise.

    Example:
        >>> from softattn_lib import taylor
        >>> check_kernel(taylor(2))
        ['inputs', 'features', 'sign', 'causality', 'forms', 'splits', 'gradients']
    """
    kernel = as_kernel(kernel)
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 7, d), (2, 7, d), (2, 7, d + 1))
    q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    checks = {
        "inputs": _check_inputs,
        "features": _check_features,
        "sign": _check_sign,
        "causality": _check_causality,
        "forms": _check_forms,
        "splits": _check_splits,
        "gradients": _check_gradients,
    }
    if not kernel.has_features:
        checks = {name: checks[name] for name in ("inputs", "sign", "causality", "gradients")}
    for check in checks.values():
        check(kernel, q, k, v)
    return list(checks)


def _run(form, kernel, q, k, v, **options):
    return FORMS[form](q, k, v, kernel=kernel, normalizer="none", scale=0.7, **options)


def _check_inputs(kernel, q, k, v):
    q_copy, k_copy = q.clone(), k.clone()
    kernel.weight(kernel.scores(q_copy, k_copy, 0.7))
    if kernel.has_features:
        kernel.query_features(q_copy, 0.7)
        kernel.key_features(k_copy)
    for name, before, after in (("q", q, q_copy), ("k", k, k_copy)):
        if not torch.equal(before, after):
            raise KernelCheckError(f"inputs: {name} was changed in place")


def _check_features(kernel, q, k, v):
    query, key = kernel.query_features(q, 0.7), kernel.key_features(k)
    said = kernel.num_features(q.shape[-1])
    for name, features in (("query_features", query), ("key_features", key)):
        if features.shape != (*q.shape[:-1], said):
            raise KernelCheckError(
                f"features: num_features({q.shape[-1]}) is {said}, but {name} of "
                f"{tuple(q.shape)} has shape {tuple(features.shape)}"
            )
    weights = kernel.weight(kernel.scores(q, k, 0.7))
    _agree("features: <query_features, key_features> is not the weight", query @ key.mT, weights)


def _check_sign(kernel, q, k, v):
    lowest = kernel.weight(kernel.scores(4 * q, 4 * k, 0.7)).min()
    if kernel.is_nonnegative and not lowest >= 0:
        raise KernelCheckError(f"sign: is_nonnegative is True, but a weight is {lowest:.3g}")


def _check_causality(kernel, q, k, v):
    whole, _ = _run("parallel", kernel, q, k, v)
    first, _ = _run("parallel", kernel, *(x[:, :4] for x in (q, k, v)))
    _agree("causality: later tokens change earlier outputs", whole[:, :4], first)


def _check_forms(kernel, q, k, v):
    expected, expected_state = _run("parallel", kernel, q, k, v)
    for form in ("recurrent", "chunked"):
        out, state = _run(form, kernel, q, k, v)
        _agree(f"forms: {form} and parallel outputs differ", out, expected)
        _agree(f"forms: {form} and parallel states differ", state.sums, expected_state.sums)


def _check_splits(kernel, q, k, v):
    expected, expected_state = _run("parallel", kernel, q, k, v)
    for form in FORMS:
        for cut in (1, 4):
            first, state = _run(form, kernel, *(x[:, :cut] for x in (q, k, v)))
            rest, state = _run(form, kernel, *(x[:, cut:] for x in (q, k, v)), initial_state=state)
            out = torch.cat([first, rest], dim=1)
            _agree(f"splits: {form} cut at {cut} gives other outputs", out, expected)
            _agree(f"splits: {form} cut at {cut}: other state", state.sums, expected_state.sums)


def _check_gradients(kernel, q, k, v):
    inputs = [x[:1, :4].clone().requires_grad_() for x in (q, k, v)]
    for form in FORMS if kernel.has_features else ("parallel",):
        try:
            torch.autograd.gradcheck(lambda *x, form=form: _run(form, kernel, *x)[0], inputs)
        except RuntimeError as error:
            raise KernelCheckError(f"gradients: {form} form: {error}") from error


def _agree(what: str, got, expected) -> None:
    error = (got - expected).abs().max() / expected.abs().max().clamp(min=1)
    if not error < 1e-10:
        raise KernelCheckError(f"{what}: relative error {error:.2g}")
