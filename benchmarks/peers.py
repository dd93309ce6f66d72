"""The same attention from other libraries, timed beside ours and checked against float64.

A peer is a function of q, k, v, each (1, H, T, d), causal, with the scale d ** -0.5. Most need a
package of the extra `bench`; where one is missing or does not work here, the table says why.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from softattn_lib import parallel_attention, softmax_attention, taylor

from .targets import ours, random_inputs, sdpa
from .timing import interleaved

ORDER = 2
LENGTHS = (1024, 4096)
LEFT_OUT = """\
Not in the table: taylor-series-linear-attention, whose causal form needs pytorch-fast-transformers,
which pip builds with a CUDA compiler only; performer-pytorch, whose random features are another
function."""


@dataclass(frozen=True)
class Peer:
    """Another implementation.

    Attributes:
        name: as the table shows it.
        load: imports what is needed and returns the function; ImportError if it is not there.
        exact: the function that it computes, in any dtype.
        longest: most tokens that it is timed with; quadratic memory or patience end there.
    """

    name: str
    load: Callable[[], Callable]
    exact: Callable
    longest: int = 16_384


@dataclass(frozen=True)
class PeerResult:
    """A line of the table of peers; `times` are relative to SDPA at each length."""

    name: str
    times: tuple[str, ...]
    error: str
    note: str


def exact_taylor(q, k, v):
    return parallel_attention(q, k, v, kernel=taylor(ORDER), return_state=False)[0]


def flex_attention():
    """Softmax of the logarithm of a polynomial of the score: an exact rival, even orders only."""
    from torch.nn.attention import flex_attention as flex

    polynomial = taylor(ORDER)

    def log_weight(score, *position):
        return polynomial(score).log()

    def causal(batch, head, query, key):
        return query >= key

    compiled = torch.compile(flex.flex_attention, dynamic=False)

    @functools.lru_cache
    def mask(length):
        return flex.create_block_mask(causal, None, None, length, length, device="cpu")

    return lambda q, k, v: compiled(q, k, v, score_mod=log_weight, block_mask=mask(q.shape[-2]))


def fla_naive_parallel():
    from fla.ops.based.naive import naive_parallel_based

    return naive_parallel_based


def fla_naive_chunk():
    from fla.ops.based.naive import naive_chunk_based

    return naive_chunk_based


def fla_feature_map():
    """The packed feature map of fla and its chunked linear attention in PyTorch, tokens first."""
    from fla.modules.feature_map import TaylorFeatureMap
    from fla.ops.linear_attn.naive import naive_chunk_linear_attn

    def attend(q, k, v):
        features = TaylorFeatureMap(q.shape[-1])
        q, k, v = (x.transpose(1, 2) for x in (features(q), features(k), v))
        return naive_chunk_linear_attn(q, k, v, scale=1.0, normalize=True).transpose(1, 2)

    return attend


PEERS = [
    Peer("SDPA", lambda: sdpa, softmax_attention),
    Peer("softattn_lib chunked", lambda: functools.partial(ours, order=ORDER), exact_taylor),
    Peer("FlexAttention, compiled", flex_attention, exact_taylor),
    Peer("fla, naive parallel", fla_naive_parallel, exact_taylor, longest=4096),
    Peer("fla, naive chunk", fla_naive_chunk, exact_taylor, longest=4096),
    Peer("fla, packed map + naive chunk linear", fla_feature_map, exact_taylor),
]


def compare(peers=PEERS, lengths=LENGTHS, heads=4, d=16, seconds=1.0) -> list[PeerResult]:
    """Time every peer against SDPA at each length, and its error against float64 at the first."""
    return [_compare(peer, lengths, heads, d, seconds) for peer in peers]


def _compare(peer: Peer, lengths, heads, d, seconds) -> PeerResult:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what others warn of when imported
            attend = peer.load()
            error = _error(attend, peer.exact, random_inputs(heads, lengths[0], d))
            times = [_relative_time(attend, peer, heads, n, d, seconds) for n in lengths]
    except Exception as problem:  # a missing package, or one that does not work on this machine
        why = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return PeerResult(peer.name, times=("",) * len(lengths), error="", note=why)
    note = "" if peer.exact is exact_taylor else "softmax, not its series"
    return PeerResult(peer.name, times=tuple(times), error=f"{error:.1e}", note=note)


def _error(attend, exact, qkv) -> float:
    """Relative to the same function in float64."""
    truth = exact(*(x.double() for x in qkv))
    return float((attend(*qkv) - truth).norm() / truth.norm())


def _relative_time(attend, peer, heads, length, d, seconds) -> str:
    if length > peer.longest:
        return ""
    qkv = random_inputs(heads, length, d)
    time, of_sdpa = interleaved([lambda: attend(*qkv), lambda: sdpa(*qkv)], seconds)
    return f"{time / of_sdpa:.3g}"
