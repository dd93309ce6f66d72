"""Polynomials that match the outputs of a layer, not only the weights: sums of two squares.

A polynomial that is nowhere negative is a sum of two squares, so p = q_1^2 + q_2^2 with q_1, q_2 of
half its order misses none and is positive whatever its coefficients. They are found by L-BFGS, from
the least squares fit of one square, so that each head's output is close to that of softmax. A fixed
vector subtracted from all keys of a key head, which softmax does not notice, is found with them.
"""

import torch
from torch import Tensor

from .families import ChebyshevPolynomial, chebyshev_basis, clenshaw
from .fitting import observe, square
from .polynomials import check_order

RIDGE = 0.1  # on the whitened key shift, whose output error is in units of the output


def match_outputs(
    order: int, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, *, scale: float, steps: int = 80
) -> tuple[list[ChebyshevPolynomial], Tensor]:
    """Fit a sum of two squares for each head, and a key shift for each key head.

    What is made small is, head by head, the mean over the queries of |output - softmax output|^2
    over that of |softmax output|^2, with the output in the coordinates that v is given in. The
    interval (low, high) of a polynomial holds the scores under the key shift that the search starts
    from, not under the one that is returned.

    Args:
        order: even, >= 2.
        q: (Hq, n, R, d), R queries of each of n texts.
        k, v: (Hk, n, T, d), (Hq, n, T, e).
        visible: (R, T) bool, the keys that each query sees.
        scale: of the scores.
        steps: of L-BFGS.

    Raises:
        ValueError: if order is not an even integer >= 2.

    Returns:
        polynomials of the Hq heads, and the key shift (Hk, d).

    Example:
        >>> q, k = torch.randn(2, 2, 1, 9, 4, generator=torch.Generator().manual_seed(0))
        >>> seen = torch.ones(9, 9, dtype=torch.bool).tril()
        >>> polynomials, shift = match_outputs(2, q, k, k, seen, scale=1.0)
        >>> len(polynomials), polynomials[0].order, shift.shape
        (2, 2, torch.Size([2, 4]))
    """
    if check_order(order) < 2 or order % 2:
        raise ValueError(f"order of a sum of two squares must be even and >= 2, got {order}")
    problem = _Problem(order, q.float() * scale, k.float(), v.float(), visible)
    return problem.solve(steps)


class _Problem:
    """The fit of one layer. Its unknowns are in coordinates in which L-BFGS has an easy time."""

    def __init__(self, order, q, k, v, visible):
        self.q, self.v, self.visible, self.groups = q, v, visible, len(q) // len(k)
        scores = q @ k.repeat_interleave(self.groups, 0).mT  # (Hq, n, R, T)
        hidden = scores.masked_fill(~visible, -torch.inf)
        self.target = hidden.softmax(-1) @ v
        size = self.target.square().sum(-1).mean((1, 2))  # (Hq,)
        self.size = size.clamp(min=torch.finfo(size.dtype).tiny)  # a head may have no output
        means = k.flatten(1, 2).mean(1)
        self.start = torch.stack([torch.zeros_like(means), means])  # candidates
        self.scores, self.order = scores, order

    def solve(self, steps):
        starts = [self._begin(shift) for shift in self.start]
        losses = torch.stack([self._loss(*start).unflatten(0, (-1, self.groups)).sum(1).detach()
                              for start in starts])  # fmt: skip
        better = losses.argmin(0).bool()  # (Hk,)
        a, b = starts
        terms, low, high, whiten, shift, whiten_shift, move = (
            torch.where(by_head(better.repeat_interleave(len(x) // len(better)), x), y, x)
            for x, y in zip(a, b, strict=True)
        )
        terms, move = terms.requires_grad_(), move.requires_grad_()
        optimizer = torch.optim.LBFGS(
            [terms, move], max_iter=steps, history_size=20, line_search_fn="strong_wolfe"
        )

        def closure():
            optimizer.zero_grad()
            loss = self._loss(terms, low, high, whiten, shift, whiten_shift, move).sum()
            loss = loss + RIDGE * move.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            terms = torch.einsum("hij,hsj->hsi", whiten, terms).double()
            shift = shift + torch.einsum("gij,gj->gi", whiten_shift, move)
        polynomials = [
            ChebyshevPolynomial(lo.item(), hi.item(), tuple(map(tuple, t.tolist())), True)
            for lo, hi, t in zip(low.double(), high.double(), terms, strict=True)
        ]
        return polynomials, shift

    def _begin(self, shift):
        """Square fits for keys moved by a shift (Hk, d), and the coordinates."""
        scores = self._moved(shift)
        hidden = scores.masked_fill(~self.visible, -torch.inf)
        fits = [square(self.order, observe(head)) for head in hidden]
        low, high = (scores.new_tensor([getattr(p, end) for p in fits]) for end in ("low", "high"))
        terms = torch.tensor([p.terms[0] for p in fits], dtype=torch.float64)
        log_sum = hidden.double().logsumexp(-1, keepdim=True)
        basis = chebyshev_basis(self._scaled(scores, low, high).double(), terms.shape[1])
        basis = torch.stack(basis, -1) * (-log_sum / 2).exp().unsqueeze(-1)
        basis = basis * self.visible.unsqueeze(-1)
        whiten = whitening(basis.flatten(1, 3))
        first = torch.linalg.solve(whiten, terms.unsqueeze(-1)).squeeze(-1)
        signs = (-1.0) ** torch.arange(first.shape[1])
        terms = torch.stack([first, 0.1 * first * signs], dim=1).float()
        queries = self.q.double().unflatten(0, (-1, self.groups)).flatten(1, 3)
        whiten_shift = whitening(queries - queries.mean(1, keepdim=True)).float()
        return terms, low, high, whiten.float(), shift, whiten_shift, torch.zeros_like(shift)

    def _moved(self, shift):
        moved = torch.einsum("hnrd,hd->hnr", self.q, shift.repeat_interleave(self.groups, 0))
        return self.scores - moved.unsqueeze(-1)

    @staticmethod
    def _scaled(scores, low, high):
        low, high = by_head(low, scores), by_head(high, scores)
        return (scores - (low + high) / 2) * (2 / (high - low))

    def _loss(self, terms, low, high, whiten, shift, whiten_shift, move):
        """(Hq,): the relative error of the output."""
        shift = shift + torch.einsum("gij,gj->gi", whiten_shift, move)
        t = self._scaled(self._moved(shift), low, high)
        weights = sum(
            clenshaw(t, [by_head(c, t) for c in term.unbind(1)]).square()
            for term in torch.einsum("hij,hsj->shi", whiten, terms)
        )
        weights = weights * self.visible
        out = (weights / weights.sum(-1, keepdim=True)) @ self.v
        return (out - self.target).square().sum(-1).mean((1, 2)) / self.size


def whitening(rows: Tensor) -> Tensor:
    """(h, m, m) for rows (h, n, m): coordinates in which their mean square is the identity.

    Example:
        >>> rows = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0))
        >>> white = rows @ whitening(rows)
        >>> torch.allclose(white.mT @ white / 50, torch.eye(3), atol=1e-4)
        True
    """
    gram = rows.mT @ rows / rows.shape[1]
    size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    gram = gram + 1e-6 * by_head(size, gram) * torch.eye(gram.shape[-1]).to(gram)
    return torch.linalg.inv(torch.linalg.cholesky(gram)).mT


def by_head(x: Tensor, y: Tensor) -> Tensor:
    """x (h,) with as many axes as y (h, ...).

    Example:
        >>> by_head(torch.ones(2), torch.ones(2, 3, 4)).shape
        torch.Size([2, 1, 1])
    """
    return x.reshape(-1, *[1] * (y.dim() - 1))
