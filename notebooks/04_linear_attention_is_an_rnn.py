# %% [markdown]
# # Linear attention is an RNN
#
# **Minutes:** 30
#
# **Goals:** after this notebook you can
#
# - move the sum over the past inside the attention formula, and say what makes that legal
# - fill the state of linear attention token by token, by hand
# - get the same numbers from three forms: parallel, recurrent, chunked
# - say in which sense linear attention is "order 1", and in which it is not
# - recognise a denominator that breaks, and say why some feature maps are safe from that
#
# **Before:** [01](01_softmax_attention.ipynb) for the formula and the toy; [02](02_exp_as_a_series.ipynb) and [03](03_powers_of_an_inner_product.ipynb) help with the second half. The small model is not needed.
#
# **You know most of this?** Read [What people use is not the first term](#What-people-use-is-not-the-first-term), [What order 1 cannot hold](#What-order-1-cannot-hold), then [What you saw](#What-you-saw).
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $d$ width of a query or key; $e$ width of a value, or the base of exp; $Q$ queries; $K$ keys; $V$ values; $O$ outputs; $n$ an order; $H$ states; $\phi$ features ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import torch

from softattn_lib import doctor, equations, toy
from softattn_lib.predictions import predict, reveal

doctor.check()
torch.set_default_dtype(torch.float64)
q, k, v = toy.q, toy.k, toy.v  # (T, d), (T, d), (T, e) with T = 4 and d = e = 2

# %% [markdown]
# ## What writing one more token costs
#
# A language model writes one token at a time. Each new token brings one query, and softmax attention compares it with *every* key so far. Once more the toy of 01, with a count of the weights that each token needs and of the numbers that must be kept.

# %%
for t in range(4):
    weights = (q[t] @ k[: t + 1].T).exp()  # (t + 1,)
    out = weights @ v[: t + 1] / weights.sum()  # (e,)
    kept = k[: t + 1].numel() + v[: t + 1].numel()
    print(f"token {t + 1}: {t + 1} weights, {kept:2} numbers kept, output", out)

# %% [markdown]
# Both counts grow without end (the kept keys and values are the KV cache). Nothing can be thrown away, because $Q_t$ sits inside the exponential together with each $K_s$: before the query is known, none of the work can be done.
#
# So let us ask for a kinder similarity, one that **factorises** into something of the query times something of the key.

# %% [markdown]
# ## A similarity that factorises
#
# Choose a **feature map** $\phi$, apply it to query and key separately, and let the weight be the inner product $\phi(Q_t)\,\phi(K_s)^\top$. We take the simplest one whose weights are never negative: $\phi = \mathrm{relu}$, which replaces negative entries by 0.
#
# **Predict:** the last query is $(1, -2)$. What is $\phi(Q_4)$, and which of the four keys get no weight from it?

# %%
phi = torch.relu
print("phi(K) =", phi(k).tolist())  # (T, d)
print("phi(Q_4) =", phi(q[3]).tolist())  # (d,)
print("weights of the last query:", (phi(q[3]) @ phi(k).T).tolist())  # (T,)

# %% [markdown]
# Only the second key gets nothing. Now the point of the exercise. The query does not depend on $s$, so it can leave the sum:
#
# $$ O_t = \sum_{s \le t} \phi(Q_t) \phi(K_s)^\top V_s = \phi(Q_t) H_t, \qquad H_t = \sum_{s \le t} \phi(K_s)^\top V_s \tag{4.1} $$
#
# On the left, one weight for each pair. On the right, the past is summed up first, into a matrix $H_t$ of shape $d \times e$, and the query comes last. Only the brackets moved: matrix products are associative.

# %% tags=["eq-4-1"]
left = sum((phi(q[3]) @ phi(k[s])) * v[s] for s in range(4))  # a weight for each key, (e,)
state = sum(torch.outer(phi(k[s]), v[s]) for s in range(4))  # the past alone, (d, e)
right = phi(q[3]) @ state  # (e,)
print("pair by pair:", left.tolist(), "  through the state:", right.tolist())
print(equations.check("4.1"))

# %% [markdown]
# (The formula is the one of Katharopoulos et al., 2020, from which the paper starts. It has no denominator yet; we come to that.)
#
# **Say why:** where exactly would this step fail for $e^{Q_t K_s^\top}$?
#
# <details><summary>One answer</summary>
#
# $\phi(Q_t)$ leaves the sum because it *multiplies*. In $e^{Q_t K_s^\top}$ the query sits in the exponent, and no finite list of functions of the query alone times functions of the key alone gives the same number for all queries and keys. An infinite list does: that is notebook 05.
#
# </details>

# %% [markdown]
# ## The state is recurrent
#
# $H_4$ is $H_3$ plus one term, the last token's. So the past need not be summed anew:
#
# $$ H_t = H_{t-1} + \phi(K_t)^\top V_t \tag{4.2} $$
#
# **Predict:** start from zeros and fill the four states on paper. Each token adds the column $\phi(K_t)^\top$ times the row $V_t$; the values are $(1, 0)$, $(0, 1)$, $(2, 1)$, $(-1, 1)$. Which row does the third token leave alone?

# %% tags=["eq-4-2"]
state = torch.zeros(2, 2)  # (d, e): the empty past
for t in range(4):
    state = state + torch.outer(phi(k[t]), v[t])
    print(f"H_{t + 1} =", state.tolist())
print("the same as the sum over the past:", torch.equal(state, phi(k).T @ v))
print(equations.check("4.2"))


# %% [markdown]
# The third token has $\phi(K_3) = (1, 0)$, so it touches the first row only.
#
# This is a recurrent network: a hidden state, an update that sees one token, and a read-out. It is an especially plain one. Nothing is forgotten (no decay), nothing bends (no nonlinearity between steps), and new tokens are simply added.

# %%
def cell(state, q_t, k_t, v_t):
    state = state + torch.outer(phi(k_t), v_t)  # write: (d, e)
    return state, phi(q_t) @ state  # read: (e,)


state, reads = torch.zeros(2, 2), []
for t in range(4):
    state, read = cell(state, q[t], k[t], v[t])
    reads.append(read)
print(torch.stack(reads))  # (T, e)

# %% [markdown]
# Four steps, each as cheap as the one before. The parallel form computes the same four rows from all pairs at once, with the weights of the future set to zero:

# %%
weights = (phi(q) @ phi(k).T).tril()  # (T, T): row t holds the weights of query t
print(weights)
print("same outputs:", torch.equal(weights @ v, torch.stack(reads)))

# %% [markdown]
# ## The denominator comes along
#
# The third read-out is $(3, 2)$, larger than any of the values it came from: it is a sum, not an average. Softmax divides by the sum of its weights, and so can we.
#
# The sum of the weights is formula (4.1) with every $V_s$ replaced by 1. So we write a 1 behind each value, and the same state counts along.

# %%
with_one = torch.cat([v, torch.ones(4, 1)], dim=-1)  # (T, e + 1): [V_s, 1]
state = phi(k).T @ with_one  # (d, e + 1)
read = phi(q[3]) @ state  # (e + 1,)
print("state:", state.tolist())
print("numerator", read[:2].tolist(), "denominator", read[2].item())
print("output", (read[:2] / read[2]).tolist())  # (e,)

# %% [markdown]
# The library does the same in one call. `scale=1.0` because the paper's equations leave the scale out ([01](01_softmax_attention.ipynb) explains $d^{-1/2}$); in practice you leave the argument away. `recurrent_attention` returns the outputs and the state after the last token.

# %%
from softattn_lib import recurrent_attention

out, final = recurrent_attention(q, k, v, kernel="relu", scale=1.0)
print(out)  # (T, e)
print("its state is ours:", torch.equal(final.sums, state))

# %% [markdown]
# ## Three forms, one function
#
# A model is trained with the **parallel** form (all pairs at once, good for matrix hardware) and decodes with the **recurrent** form (constant work per token). The **chunked** form mixes them: pairs inside a chunk, a state between chunks.
#
# **A common belief: "the recurrent form is an approximation of the parallel one."**

# %% tags=["nbval-ignore-output"]
predict(
    "04-forms",
    "How far apart will the outputs of the three forms be?",
    ["more than 1 %", "less than 1 %, but more than rounding", "rounding at most"],
)

# %%
from softattn_lib import chunked_attention, parallel_attention

options = {"kernel": "relu", "scale": 1.0}
parallel, _ = parallel_attention(q, k, v, **options)
chunked, _ = chunked_attention(q, k, v, **options, chunk_size=3)
print("parallel = recurrent:", torch.allclose(parallel, out, rtol=0, atol=1e-15))
print("chunked  = recurrent:", torch.allclose(chunked, out, rtol=0, atol=1e-15))
apart = max((form - out).abs().max() for form in (parallel, chunked))
larger = "more than 1 %" if apart > 0.01 else "less than 1 %, but more than rounding"
reveal("04-forms", "rounding at most" if apart < 1e-12 else larger, "the forms only set the "
       "brackets of one matrix product differently, and that product is associative.")

# %% [markdown]
# They are one function, up to rounding. That is why a sequence may be cut anywhere, and each piece computed by any form: the state carries everything that the past has to say.
#
# Here the first piece goes through the parallel form, and the rest continues from its state, token by token. An empty piece is fine too.

# %%
for cut in range(5):
    first, state = parallel_attention(q[:cut], k[:cut], v[:cut], **options)
    rest, state = recurrent_attention(q[cut:], k[cut:], v[cut:], **options, initial_state=state)
    same = torch.allclose(torch.cat([first, rest]), out) and torch.allclose(state.sums, final.sums)
    print(f"cut after {cut} tokens: same outputs and same state: {same}")

# %% [markdown]
# The toy is small and square, so a swapped axis could hide in it. The same on 2 sequences with 3 heads, 50 tokens, keys of width 4 and values of width 5, with another feature map in use, elu + 1: it adds 1 to a positive entry and takes exp of any other, so that all come out positive.

# %%
generator = torch.Generator().manual_seed(0)
Q, K = (torch.randn(2, 3, 50, 4, generator=generator) for _ in range(2))  # (B, H, T, d)
V = torch.randn(2, 3, 50, 5, generator=generator)  # (B, H, T, e)
a, _ = parallel_attention(Q, K, V, kernel="elu_plus_one")
b, _ = recurrent_attention(Q, K, V, kernel="elu_plus_one")
c, _ = chunked_attention(Q, K, V, kernel="elu_plus_one", chunk_size=16)
print("differences below 1e-12:", [bool((a - other).abs().max() < 1e-12) for other in (b, c)])

# %% [markdown]
# ## A state that does not grow
#
# What was it good for? Count the numbers that one head keeps. The state holds $d\,(e + 1)$, whatever the length; the cache holds $t\,(d + e)$ after $t$ tokens.
#
# **Predict:** with $d = e = 64$, a usual size, [01](01_softmax_attention.ipynb) counted $d\,e$ numbers, as many as the cache has at token 32. From which token on is the cache the larger, now that the denominator has its column? (00 and 03 also count order 0, which adds a row.)

# %%
d = e = 64
kept_by_state = d * (e + 1)
tokens = torch.arange(1, 1001)
kept_by_cache = tokens * (d + e)
print("the state holds", kept_by_state, "numbers")
print("the cache is larger from token", tokens[kept_by_cache > kept_by_state][0].item(), "on")
print(f"at token 1000 it is {kept_by_cache[-1] / kept_by_state:.1f} times as large")

# %% tags=["nbval-ignore-output"]
from softattn_lib import figures

figures.lines_figure(
    tokens[::50],
    {
        "state of linear attention": [kept_by_state] * 20,
        "cache of softmax attention": kept_by_cache[::50],
    },
    title="Numbers that one head keeps (d = e = 64)",
    caption="The cache grows with every token, the state stays as it is.",
    x_title="tokens so far",
    y_title="numbers kept",
)

# %% [markdown]
# ## Linear attention is order 1
#
# The relu was our choice. Leave $\phi$ out, leave the denominator out, and the plainest linear attention remains:
#
# $$ O_t^{(\mathrm{linear})} = Q_t \sum_{s \le t} K_s^\top V_s = Q_t H_t \tag{4.3} $$
#
# Now the weight is the score itself. In the series $e^x = 1 + x + x^2/2 + \dots$ of a score $x$ ([02](02_exp_as_a_series.ipynb)) that is the term $n = 1$. The paper says so too: in its Figure 1 the box of order 1 is labelled linear attention.

# %% tags=["eq-4-3"]
state = k.T @ v  # (d, e)
print("through the state:", (q[3] @ state).tolist())  # (e,)
print("by the scores:    ", ((q[3] @ k.T) @ v).tolist())
linear, _ = recurrent_attention(q, k, v, kernel="identity", normalizer="none", scale=1.0)
print("by the library:   ", linear[3].tolist())
print(equations.check("4.3"))

# %% [markdown]
# Is it the series with all but one term struck out? A `Polynomial` lists its coefficients from order 0 up.

# %%
from softattn_lib import Polynomial

only_order_one = Polynomial((0, 1))
term, _ = recurrent_attention(q, k, v, kernel=only_order_one, normalizer="none", scale=1.0)
print("linear attention is the term of order 1:", torch.equal(term, linear))

# %% [markdown]
# ## What people use is not the first term
#
# **A common belief: "linear attention is the first Taylor term of softmax."** That holds for (4.3). In practice people add a feature map (relu, elu + 1, or cosine, which divides a row by its length) and a denominator of their own, and leave order 0 out.
#
# A term of the series is a function of the score. **Predict:** the keys $(1, 0)$ and $(2, -1)$ have the same score with the query $(1, 1)$. Do the feature maps give them the same weight?

# %%
from softattn_lib.kernels import KERNELS

query, keys = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0], [2.0, -1.0]])
print("scores      ", (query @ keys.T).tolist())
for name in ("relu", "elu_plus_one", "cosine"):
    print(f"{name:12}", KERNELS[name].scores(query, keys, scale=1.0).round(decimals=3).tolist())

# %% [markdown]
# Same score, different weights: none of the three is a function of the score, so none is a term of any series in it. What they are is an **order-1 RNN**: the state holds first powers of the features, $d$ rows of them, and the machinery of this notebook applies.

# %% [markdown]
# ## A denominator that breaks
#
# Scores can be negative, so with the identity (and with the cosine) weights can be negative, and their sum can be anything. The last query of the toy has the scores $1, -2, 3, -\tfrac12$ with the sum $\tfrac32$. The library computes what we ask for, and warns:

# %%
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    out, _ = parallel_attention(q, k, v, kernel="identity", scale=1.0)
print("weights:", (q[3] @ k.T / 1.5).numpy().round(3), " output:", out[3].numpy().round(3))
print(caught[0].message)

# %% [markdown]
# The "weights" add up to 1, but one of them is 2 and another is below $-1$. This is no average any more: the output's first entry is 5, while no value has an entry above 2.
#
# It gets worse. **Predict:** what comes out for the *opposite* query, $(-1, 2)$? And can you find a query whose denominator is 0? (The keys add up to $(2.5, 0.5)$.)

# %%
queries = torch.tensor([[1.0, -2.0], [-1.0, 2.0], [1.0, -4.9], [1.0, -5.0]])
reads = queries @ (k.T @ with_one)  # (4, e + 1): numerators and denominator
for query, read in zip(queries.tolist(), reads, strict=True):
    print(f"{query} denominator {read[2]:.2f}, output", (read[:2] / read[2]).numpy().round(3))

# %% [markdown]
# The opposite question gets the very same answer, since both signs cancel. Close to $(1, -5)$ the output explodes, at $(1, -5)$ it is undefined. (The library gives 0 where a denominator is exactly 0, and never hides one that is nearly 0.)
#
# How often does this happen? We draw random heads and count the denominators of all tokens.

# %%
Q, K = (torch.randn(500, 32, 4, generator=generator) for _ in range(2))  # (B, T, d)
print("share of denominators   below 0   exactly 0")
for name in ("identity", "cosine", "relu", "elu_plus_one"):
    denominators = KERNELS[name].scores(Q, K, scale=1.0).tril().sum(-1)  # (B, T)
    below, zero = (denominators < 0).double().mean(), (denominators == 0).double().mean()
    print(f"{name:12}            {below:7.2f}   {zero:9.3f}")

# %% [markdown]
# Half of them for identity and cosine: the sign is a coin toss. With relu and elu + 1 none is negative. That is what these maps are for: **weights that are not negative make a true average**, and an average of the values can never be longer than the longest of them.

# %%
values = torch.randn(500, 32, 5, generator=generator)  # (B, T, e)
longest = values.norm(dim=-1).max()
warnings.simplefilter("ignore")  # we know by now what we are doing
for name in ("identity", "cosine", "relu", "elu_plus_one"):
    out, _ = parallel_attention(Q, K, values, kernel=name)
    no_longer = (out.norm(dim=-1).max() <= longest).item()
    print(f"{name:12} no output longer than the longest value: {no_longer}")

# %% [markdown]
# The remedies have their prices. Relu can leave a query with no weight at all (the zeros in the table; the library then returns 0). And elu + 1 sees everything a little: it cannot say "not this key". Compare the shares that the last query gives to the four keys, whose scores are $1, -2, 3, -\tfrac12$:

# %%
shares = KERNELS["elu_plus_one"].scores(q, k, scale=1.0)[3]
print("softmax", torch.softmax(q[3] @ k.T, -1).numpy().round(3))
print("elu + 1", (shares / shares.sum()).numpy().round(3))

# %% [markdown]
# ## Is it softmax with a small error?
#
# **A common belief: "linear attention is softmax attention with a small error."** If the error came from terms left out of a series, it would vanish for small scores. So shrink the queries and watch the distance to softmax. For comparison, `taylor(1)` keeps the orders 0 and 1 of the series.

# %% tags=["nbval-ignore-output"]
predict(
    "04-small-error",
    "taylor(1), identity, relu, elu + 1: which distances to softmax go to 0 with the scores?",
    ["all four", "that of taylor(1) alone", "none"],
)

# %%
from softattn_lib import softmax_attention, taylor


def gap(size, kernel):
    """The largest difference to softmax when every query is multiplied by size."""
    out, _ = parallel_attention(size * q, k, v, kernel=kernel, scale=1.0)
    return (out - softmax_attention(size * q, k, v, scale=1.0)).abs().max().item()


kernels = (taylor(1), "identity", "relu", "elu_plus_one")
print("size of q   taylor(1)   identity       relu    elu + 1")
for size in (1.0, 0.1, 0.001):
    gaps = [gap(size, kernel) for kernel in kernels]
    print(f"{size:9}", *(f"{x:10.6f}" for x in gaps))
gone = {0: "none", 1: "that of taylor(1) alone", 4: "all four"}[sum(x < 1e-3 for x in gaps)]
reveal("04-small-error", gone, "it alone is exp with terms left out. "
       "A feature map makes another similarity, for small scores too.")

# %% [markdown]
# For small queries softmax becomes the plain average of the past. That is order 0; none of the three feature maps lets all weights become equal. Identity and relu do not even notice: a factor on the query cancels between numerator and denominator, so their outputs stay as they are. (Their distances change because softmax moves.)
#
# Linear attention with a feature map is another similarity, not softmax to first order.

# %% [markdown]
# ## What order 1 cannot hold
#
# In [03](03_powers_of_an_inner_product.ipynb) element-wise maps could not make the cross term $k_1 k_2$ of a key $k$. Here is what that means for a state. Take two pasts of two tokens each, all values equal to 1: keys $(1, 1)$ and $(-1, -1)$, or keys $(1, -1)$ and $(-1, 1)$.
#
# **Predict:** can any query tell them apart with softmax weights? With linear attention?

# %%
one_past = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
another = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
query = torch.tensor([1.0, 1.0])
sums = [(query @ past.T).exp().sum().item() for past in (one_past, another)]
print("sums of exp:", [round(x, 3) for x in sums])
for name in ("identity", "cosine", "relu", "elu_plus_one"):
    states = [KERNELS[name].key_features(past).sum(0) for past in (one_past, another)]  # (d,)
    print(f"{name:12} states are equal:", torch.allclose(*states, atol=1e-12))

# %% [markdown]
# The states of linear attention are *equal*, so no query can separate the two pasts. In one the entries of each key agree, in the other they differ, and a map that works entry by entry cannot hold that (the cosine fails here too: it is odd, and each past holds a key and its opposite). It takes the product $k_1 k_2$: order 2. (The paper argues so for the higher orders; the example is ours.)

# %%
products = [(past[:, 0] * past[:, 1]).sum().item() for past in (one_past, another)]
print("sum of k_1 k_2 over the past:", products)

# %% [markdown]
# ## Try it
#
# 1. Put your own feature map in place of `phi = torch.relu`, for instance `lambda x: torch.relu(x) ** 2`. How much of the code up to "The denominator comes along" has to change?
# 2. Make a kernel of that map: subclass `FeatureMapKernel`, as its docstring shows, and hand it to `check_kernel`. It tries the three forms, the splits and the gradients for you.
# 3. Find a query for which identity attention on the toy gives an output longer than 1000. Why will you never find one for relu?
#
# <details><summary>What to expect</summary>
#
# 1. Nothing but the map itself: the state, the cell and the two forms hold for every $\phi$.
# 2. The cell below does it.
# 3. Just off $(1, -5)$, for instance $(1, -4.999)$: the denominator is 0.0005. Relu gives averages of the values, and no value is longer than $\sqrt 5$.
#
# </details>

# %%
from softattn_lib import FeatureMapKernel, check_kernel


class SquaredRelu(FeatureMapKernel):
    is_nonnegative = True

    def feature_map(self, x):
        return torch.relu(x) ** 2


print("2:", check_kernel(SquaredRelu()))  # raises where a promise is broken
read = torch.tensor([1.0, -4.999]) @ (k.T @ with_one)
print("3: longer than 1000:", ((read[:2] / read[2]).norm() > 1000).item())

# %% [markdown]
# ## What you saw
#
# - If the similarity factorises, the query leaves the sum (4.1), the past becomes a state of constant size, and each token adds one outer product to it (4.2).
# - Parallel, recurrent and chunked are the same function, and the state lets you cut a sequence anywhere.
# - Plain linear attention is the order $n = 1$ of the series (4.3). With a feature map and an own denominator it is an order-1 RNN, and not a term of the series.
# - Weights of both signs can cancel in the denominator. Weights that are never negative cannot: unless all are 0, they give averages.
# - No feature map that works entry by entry puts products of two entries of a key into the state.

# %% [markdown]
# **Exercises** to this notebook: [04](exercises/04_linear_attention_is_an_rnn.ipynb)
#
# Back to [03 Powers of an inner product](03_powers_of_an_inner_product.ipynb) · On to [05 Softmax attention is a sum of RNNs](05_softmax_attention_is_a_sum_of_rnns.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
