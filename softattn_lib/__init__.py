"""Softmax attention as a sum of recurrent networks.

The executable companion to "On the Expressiveness of Softmax Attention: A Recurrent Neural Network
Perspective" (Mongaras & Larson, 2025).
"""

from .attention import Plan, attention, explain
from .call import SignedWeightsWarning
from .chunked import chunked_attention
from .conformance import KernelCheckError, check_kernel
from .cost import Cost, Workload, crossover
from .decoder import Decoder
from .features import (
    features_of_degree,
    kronecker_power,
    num_features,
    order_slices,
    polynomial_features,
    symmetric_power,
)
from .kernels import (
    ClampedKernel,
    CosineKernel,
    EluPlusOneKernel,
    ExpKernel,
    FeatureMapKernel,
    IdentityKernel,
    Kernel,
    PolynomialKernel,
    ReluKernel,
)
from .layers import LayerMemory, SoftAttention
from .normalizers import (
    ChainNormalizer,
    L2Normalizer,
    LayerNormalizer,
    NoNormalizer,
    Normalizer,
    RMSNormalizer,
    SumNormalizer,
    TimesWidthNormalizer,
    VisibleKeysNormalizer,
)
from .parallel import parallel_attention, softmax_attention
from .polynomials import (
    Polynomial,
    order_for_tolerance,
    output_error_bound,
    remainder_bound,
    taylor,
    weight_error_bound,
)
from .recurrent import attention_step, recurrent_attention
from .state import AttentionState, init_state
from .variants import (
    VARIANTS,
    AttentionVariant,
    VariantUnavailableError,
    equivalents,
    variant,
    with_clamp,
)

__version__ = "0.1.0"
