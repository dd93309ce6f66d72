# %% [markdown]
# # Softmax attention is a sum of RNNs
#
# **Minutes:** 40
#
# **Goals:** after this notebook you can
#
# - derive the sum of recurrent networks from three facts, in four named steps
# - fill the states of order 0 and order 2 token by token, and read them
# - say what each order adds, and what happens to the denominator
# - measure when a truncated sum is close to softmax, and show where it is not
# - explain what "exact" costs, and why no finite number of orders is enough
#
# **Before:** [01](01_softmax_attention.ipynb) (the toy), [02](02_exp_as_a_series.ipynb), [03](03_powers_of_an_inner_product.ipynb) and [04](04_linear_attention_is_an_rnn.ipynb): each hands over one fact. The small model is not needed.
#
# **You know most of this?** Read [Three facts, one rule, four steps](#Three-facts,-one-rule,-four-steps), [The denominator is recurrent too](#The-denominator-is-recurrent-too), [The whole way on one page](#The-whole-way-on-one-page), then [What you saw](#What-you-saw).
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $d$ width of a query or key; $e$ width of a value, or the base of exp; $D$ features of a key; $Q$ queries; $K$ keys; $V$ values; $O$ outputs; $G$ one over the denominator; $n$ an order; $N$ the highest order kept; $H$ states; $z$ states of the denominator; $\phi$ features ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import math

import torch

from softattn_lib import Polynomial, doctor, equations, kronecker_power, softmax_attention, toy
from softattn_lib.predictions import predict, reveal

doctor.check()
torch.set_default_dtype(torch.float64)
q, k, v = toy.q, toy.k, toy.v  # (T, d), (T, d), (T, e) with T = 4 and d = e = 2

# %% [markdown]
# ## Three facts, one rule, four steps
#
# What the notebooks before this one hand over:
#
# - (1.2): softmax attention is $O_t = G_t \sum_{s \le t} e^{Q_t K_s^\top} V_s$, with the denominator set aside in $G_t$.
# - (2.1): $e^x = \sum_{n \ge 0} x^n / n!$ for every number $x$.
# - (3.1): $(q k^\top)^n = \langle q^{\otimes n}, k^{\otimes n} \rangle$ for every query $q$ and key $k$: a power of the score factorises.
# - (4.1): what factorises lets the query leave the sum over the past.
#
# The last one is the rule. **Before you read on:** try to put them together on paper.

# %% [markdown]
# **Expand** the exponential: $\quad O_t = G_t \sum_{s \le t} \sum_{n \ge 0} \frac{1}{n!} (Q_t K_s^\top)^n\, V_s$
#
# **Factor** each power: $\quad O_t = G_t \sum_{s \le t} \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} (K_s^{\otimes n})^\top V_s$
#
# **Swap** the sums, and let the query leave the inner one: $\quad O_t = G_t \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} \sum_{s \le t} (K_s^{\otimes n})^\top V_s$
#
# **Name** the inner sum: it is a state, and we call it $H_t^n$.
#
# The derivation is the paper's. Swapping needs a reason, since one sum is infinite: the other is finite, and the series of exp converges absolutely.

# %% [markdown]
# ## The state of one order
#
# $$ H_t^{n} = \sum_{s \le t} (K_s^{\otimes n})^\top V_s = H_{t-1}^{n} + (K_t^{\otimes n})^\top V_t \tag{5.1} $$
#
# This is notebook 04 with the feature map $\phi(x) = x^{\otimes n}$: a linear RNN with a state of $d^n \times e$ numbers that starts from zeros. **Predict:** the third key is $(1, -1)$ and its value $(2, 1)$. What do they write into the state of order 2?

# %% tags=["eq-5-1"]
state = torch.zeros(4, 2)  # (d ** 2, e): H_0 of order 2, the empty past
for t in range(4):
    power = kronecker_power(k[t], 2)  # (d ** 2,)
    state = state + torch.outer(power, v[t])
    print(f"key power {power.tolist()}\n  state {state.tolist()}")
print("the same as the sum:", torch.equal(state, kronecker_power(k, 2).T @ v))
print(equations.check("5.1"))

# %% [markdown]
# The rows belong to $k_1 k_1$, $k_1 k_2$, $k_2 k_1$, $k_2 k_2$. The third token writes $(2, 1)$, $(-2, -1)$, $(-2, -1)$, $(2, 1)$.
#
# These are the products of two entries that no map working entry by entry could hold at the end of 04. (The two middle rows are equal, always: notebook 03 packs them into one.)

# %% [markdown]
# Reading is the same as in 04, with the query's power. $Q_4 = (1, -2)$ has the power $(1, -2, -2, 4)$. **Predict** the read-out by hand, then compare with the direct way: square the four scores $1, -2, 3, -\tfrac12$ and weigh the values with them.

# %%
query_power = kronecker_power(q[3], 2)  # (d ** 2,)
print("query power:", query_power.tolist())
print("through the state:", (query_power @ state).tolist())  # (e,)
print("by squared scores:", ((q[3] @ k.T) ** 2 @ v).tolist())

# %% [markdown]
# ## The sum
#
# One such network for each order, each with its weight $1/n!$, all added and multiplied by $G_t$:
#
# $$ O_t = G_t \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} H_t^{n} \tag{5.2} $$
#
# The cell runs the orders 0 to 16 for the last query. **Predict:** order 16 has $2^{16}$ rows. How close to softmax do we get: to one digit, three, or seven?

# %% tags=["eq-5-2"]
gate = 1 / (q[3] @ k.T).exp().sum()  # G_4, a number
reads = []
for n in range(17):
    state = kronecker_power(k, n).T @ v  # (d ** n, e)
    reads.append(kronecker_power(q[3], n) @ state / math.factorial(n))  # (e,)
exact = softmax_attention(q, k, v, scale=1.0)[3]  # (e,)
print("sum of 17 networks:", (gate * sum(reads)).numpy().round(6))
print("softmax:           ", exact.numpy().round(6))
print("closer than 1e-7:  ", (gate * sum(reads) - exact).norm().item() < 1e-7)
print(equations.check("5.2"))

# %% [markdown]
# That is the sentence in the title, all but $G_t$, which comes further down. Nothing in the formula of softmax attention looks like a recurrence, and yet its numerator is one: a sum of linear RNNs that only ever add. Linear attention is one of them, the order 1.

# %% [markdown]
# ## What each order adds
#
# Take the sum apart again. Order $n$ contributes
#
# $$ O_t^{(n)} = \frac{G_t}{n!}\, Q_t^{\otimes n} H_t^{n} \tag{5.3} $$
#
# In [02](02_exp_as_a_series.ipynb) you added these rows up from powers of the scores. Now they come out of states, and no score is ever computed. **Predict:** the largest score of the last query is 3. Which orders matter most?

# %% tags=["eq-5-3"]
added = [gate * read for read in reads]  # 17 rows of (e,)
for n in range(12):
    so_far = sum(added[: n + 1])  # (e,)
    print(f"order {n:2} adds {added[n].numpy().round(4)}, so far {so_far.numpy().round(4)}")
by_scores = [gate * (q[3] @ k.T) ** n @ v / math.factorial(n) for n in range(17)]
same = torch.allclose(torch.stack(added), torch.stack(by_scores))
print("the same by powers of the scores:", same)
print(equations.check("5.3"))

# %% tags=["nbval-ignore-output"]
from softattn_lib import figures

parts = torch.stack(added[:12])  # (12, e)
figures.bars_figure(
    range(12),
    {"first entry of the output": parts[:, 0], "second entry": parts[:, 1]},
    title="What each order adds to the last output",
    caption="In the first entry the orders 2 and 3 add most: the largest score is 3.",
    x_title="order n",
    y_title="contribution",
)

# %% [markdown]
# For the first entry the orders 2 and 3 are on top, and both sides fall off. That is the Poisson law of 02: for a score $x > 0$ the share of order $n$ in $e^x$ peaks near $n = x$.
#
# Linear attention, order 1 alone, is one pair of bars in this picture. **Say why** every sum so far is smaller than the output it is heading for.
#
# <details><summary>One answer</summary>
#
# $G_t$ holds the complete denominator, all orders of it, while the numerator still lacks some, and on this row what is missing is positive in both entries (in general a sum can overshoot). Below we cut both at the same order.
#
# </details>

# %% [markdown]
# ## Order 0, and a slip in a picture
#
# $x^{\otimes 0} = 1$ for every $x$. So order 0 has a state of one row:
#
# $$ H_t^{0} = \sum_{s \le t} V_s \tag{5.4} $$
#
# A running sum of values, whatever the keys. No query touches it: it is read with a 1.

# %% tags=["eq-5-4"]
for t in range(4):
    state = kronecker_power(k[: t + 1], 0).T @ v[: t + 1]  # (1, e)
    print(f"after token {t + 1}: {state.tolist()}")
print("a running sum of values:", torch.equal(state[0], v.sum(0)))
print(equations.check("5.4"))

# %% [markdown]
# The paper's Figure 1 draws the orders $1$, $2$ and $n$ as boxes, and adds order 0 as the constant 1, after the gate. By the paper's own equations it is $G_t \sum_{s \le t} V_s$. A slip of the drawing only, but computed as drawn the numbers are wrong:

# %%
higher_orders = sum(added[1:])  # orders 1 to 16
print("with G_t times the sum of values:", (gate * v.sum(0) + higher_orders).numpy().round(3))
print("with the constant 1:             ", (1 + higher_orders).numpy().round(3))
print("softmax:                         ", exact.numpy().round(3))

# %% [markdown]
# ## The denominator is recurrent too
#
# So far `gate` came from all keys and the current query, and an RNN does not have all keys. **A common belief: "the denominator is a detail."** The numerator alone is near $(42, 21)$, and no value is longer than $\sqrt 5$. Without a denominator there is no average, so it has to come out of a state as well.
#
# It is the same sum without the values, and the same derivation holds:
#
# $$ G_t^{-1} = \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} z_t^{n}, \qquad z_t^{n} = \sum_{s \le t} (K_s^{\otimes n})^\top \tag{5.5} $$

# %% tags=["eq-5-5"]
total = 0
for n in range(17):
    z = kronecker_power(k, n).sum(0)  # (d ** n,)
    total = total + kronecker_power(q[3], n) @ z / math.factorial(n)
print("denominator from the states:", round(total.item(), 4))
print("denominator from the scores:", round((q[3] @ k.T).exp().sum().item(), 4))
numerator, divided = sum(reads), sum(reads) / total
print("numerator alone:", numerator.numpy().round(1), " divided:", divided.numpy().round(4))
print(equations.check("5.5"))

# %% [markdown]
# $z_t^n$ is what $H_t^n$ would be if every value were 1. So write a 1 behind each value, as in 04: **one more column**, and each state carries numerator and denominator together. (The paper studies $G_t$ by itself; the column is our way to make the recurrence complete.)
#
# This is how the library stores it: `state.sums` has the rows of all orders one below the other.

# %%
from softattn_lib import order_slices, recurrent_attention, taylor

out, state = recurrent_attention(q, k, v, kernel=taylor(2), scale=1.0)
for n, rows in order_slices(2, taylor(2)).items():
    print(f"order {n}: [H, z] =", state.sums[rows].tolist())
print("last output at order 2:", out[3].numpy().round(4))

# %% [markdown]
# Order 2 has three rows here and not four: `taylor(2)` keeps $k_1 k_2$ once. The numbers are the ones you filled in above, with the column of $z$ behind them.

# %% [markdown]
# ## Softmax is the limit
#
# Cut numerator and denominator at the same order $N$. What comes out is a true recurrent network with a finite state, and
#
# $$ \lim_{N \to \infty} \frac{\sum_{n \le N} Q_t^{\otimes n} H_t^{n} / n!}{\sum_{n \le N} Q_t^{\otimes n} z_t^{n} / n!} = \mathrm{softmax}(Q_t K_{1:t}^\top) V_{1:t} \tag{5.6} $$
#
# `taylor(order)` keeps the orders 0 to `order`.

# %% tags=["nbval-ignore-output"]
predict(
    "05-how-many",
    "The scores of the last query reach 3. Which order brings its output within 0.01 of softmax?",
    ["order 2", "order 4", "order 6", "order 12"],
)

# %% tags=["eq-5-6"]
import warnings

warnings.simplefilter("ignore")  # odd orders have weights of both signs; we look at that now
distance = {}
for order in (0, 1, 2, 3, 4, 6, 8, 10, 12):
    out, _ = recurrent_attention(q, k, v, kernel=taylor(order), scale=1.0)
    distance[order] = (out[3] - exact).norm().item()
    print(f"order {order:2}: {out[3].numpy().round(4)}, {distance[order]:.6f} from softmax")
print("softmax: ", exact.numpy().round(4))
first = min(order for order in distance if distance[order] < 0.01)
print(equations.check("5.6"))
reveal("05-how-many", f"order {first}", "the terms 3^n / n! of the largest weight grow up to "
       "n = 3, and it takes as many orders again until the rest is small.")

# %% [markdown]
# By order 12 the first four decimals are those of softmax. But order 2 is a little *worse* than order 1, as in 02: an order changes the weights of all keys, and only in the limit do they all have to be right.

# %% [markdown]
# ## Watch it run
#
# All of it in one picture. Above, from left to right: the key's powers, what they write together with $[V_t, 1]$, the state, and the query's powers, $1/n!$ included. Below: what each order reads, and how far the output is from softmax. (The picture keeps all $d^n$ rows, as the paper writes them.)
#
# **Before you play:** at which token do the rows $k_1 k_2$ and $k_2 k_1$ of the state get their first entries, and why not earlier?

# %% tags=["nbval-ignore-output"]
from softattn_lib.widgets import recurrence_stepper

widget = recurrence_stepper.mount()
widget

# %%
row = widget.figure.layout.yaxis3.ticktext.index("k₁k₂")
for token in (1, 2, 3, 4):
    widget.token.value = token
    state, off = widget.figure.data[2].z, widget.figure.data[7].y[-1]  # the state; order 2
    print(f"after token {token}: row k₁k₂ {state[row]}, order 2 is {off:.4f} from softmax")


# %% [markdown]
# **Finish the sentence:** "Two keys of the toy write nothing into the row $k_1 k_2$, because ..., and with a further token the state has ... rows than before."
#
# <details><summary>One way to finish it</summary>
#
# "... because one of their two entries is 0, and with a further token the state has no more rows than before."
#
# </details>
#
# ## Where the series is bad
#
# Now ask the opposite question: $-Q_4$, with the scores $-1, 2, -3, \tfrac12$. The largest score is smaller than before. **Predict:** will the orders converge sooner?

# %%
def distance(query, order):
    """From the output at this order to softmax, for one query over the four keys."""
    options = {"scale": 1.0, "is_causal": False}
    out, _ = recurrent_attention(query[None], k, v, kernel=taylor(order), **options)
    return (out - softmax_attention(query[None], k, v, **options)).norm().item()


print("order      Q_4     -Q_4   -3 Q_4")
for order in range(13):
    print(f"{order:5}" + "".join(f"{distance(c * q[3], order):9.4f}" for c in (1, -1, -3)))
print("order 40 below 1e-9:", [distance(c * q[3], 40) < 1e-9 for c in (1, -1, -3)])
print("softmax for -3 Q_4:", (torch.softmax(-3 * q[3] @ k.T, -1) @ v).numpy().round(3))

# %% [markdown]
# Three things to see.
#
# - For $-Q_4$ the **odd** orders 1 and 3 are worse than the even orders below them.
# - For $-3 Q_4$, with scores up to 9 in size, every odd order of the table is worse, and the even ones get worse before they get better. So much for **a common belief: "more terms are always better."**
# - In the end every column goes to zero. At order 40 all three distances are below $10^{-9}$ (the cell says so).

# %% tags=["nbval-ignore-output"]
queries = {"Q₄": q[3], "−Q₄": -q[3], "−3 Q₄": -3 * q[3]}
curves = {name: torch.tensor([distance(x, n) for n in range(31)]) for name, x in queries.items()}
figures.lines_figure(
    range(31),
    {name: curve.masked_fill(curve < 1e-10, torch.nan) for name, curve in curves.items()},
    title="Distance to softmax, order by order",
    caption="Large negative scores: odd orders stick out, and even ones help only late.",
    x_title="highest order kept",
    y_title="distance to softmax",
    log_y=True,
)

# %% [markdown]
# The reason is in the weights. The cell prints what stands for $e^x$ at the four scores of $-Q_4$. An odd polynomial falls below zero for scores negative enough (order 1 below $-1$), and then nothing is an average any more. Even orders stay positive, which is why the library's examples use them.

# %%
scores = -q[3] @ k.T  # (T,)
print("scores ", scores.tolist())
for order in (1, 2, 3, 4):
    weights = taylor(order)(scores)  # (T,)
    print(f"order {order}", weights.numpy().round(3), f"smallest {weights.min():.3f}")
print("exp    ", scores.exp().numpy().round(3))

# %% [markdown]
# How many orders are enough depends on the size of the scores, then; the table in [02](02_exp_as_a_series.ipynb) says how many for which size. **Say why** order 0 alone comes so close for $-3 Q_4$, closer than order 10.
#
# <details><summary>One answer</summary>
#
# By luck. Order 0 gives the plain mean of the values, and for this query softmax gives nearly the second value, $(0, 1)$, which is not far from that mean, $(0.5, 0.75)$. Being close at a low order proves nothing about the orders above it.
#
# </details>

# %% [markdown]
# ## Why not one power alone?
#
# If high orders carry the weight, why not keep a single even power and save the rest? With its own denominator it even is a true average. But multiply the scores by any $c > 0$:
#
# $$ \frac{\sum_s (c\, Q_t K_s^\top)^n V_s}{\sum_s (c\, Q_t K_s^\top)^n} = \frac{\sum_s (Q_t K_s^\top)^n V_s}{\sum_s (Q_t K_s^\top)^n} \tag{5.7} $$
#
# The factor $c^n$ cancels. **Predict:** what does softmax do when a query becomes three times as long?

# %% tags=["eq-5-7"]
square = Polynomial((0, 0, 1))
for c in (1, 3):
    pure = recurrent_attention(c * q, k, v, kernel=square, scale=1.0)[0][3].numpy().round(4)
    whole = softmax_attention(c * q, k, v, scale=1.0)[3].numpy().round(4)
    print(f"query times {c}: power 2", pure, " softmax", whole)
print(equations.check("5.7"))

# %% [markdown]
# Softmax moves to $(2, 1)$, the value of the best key: a longer query asks more sharply. The pure power does not hear it. Sharpness takes a **mixture** of orders: the factor $c$ multiplies order $n$ by $c^n$, so a longer query shifts the weight to the high orders.

# %% [markdown]
# ## Stop, keep the state, go on
#
# As in 04 the state is all that the past has to say. `init_state` is the empty past, `attention_step` takes one token and a state and returns an output and the next state; the old one is left as it was.

# %%
from softattn_lib import attention_step, init_state

kernel = taylor(4)
state = init_state(kernel, d=2, e=2, scale=1.0, dtype=torch.float64)
for t in range(4):
    out, state = attention_step(q[t], k[t], v[t], state, kernel=kernel, scale=1.0)
    print(f"{state.visible} tokens in {[*state.sums.shape]} numbers, output", out.numpy().round(4))

# %% [markdown]
# Cut the sequence in three, and compute each piece by another form: the parallel form on the first token, chunks on the next two, a step for the last. **Predict:** does the last output know that three programs were at work?

# %%
from softattn_lib import chunked_attention, parallel_attention

options = {"kernel": kernel, "scale": 1.0}
_, past = parallel_attention(q[:1], k[:1], v[:1], **options)
_, past = chunked_attention(q[1:3], k[1:3], v[1:3], **options, initial_state=past, chunk_size=1)
last, past = attention_step(q[3], k[3], v[3], past, **options)
print("same output, same state:", torch.allclose(last, out), torch.allclose(past.sums, state.sums))

# %% [markdown]
# Now every cut of a longer sequence, with sizes that all differ, and against softmax itself. With scores below 4 in size, order 26 is softmax to nine digits.

# %%
generator = torch.Generator().manual_seed(0)
Q, K = (torch.rand(2, 3, 9, 2, generator=generator) * 2 - 1 for _ in range(2))  # (B, H, T, d)
V = torch.randn(2, 3, 9, 5, generator=generator)  # (B, H, T, e)
options = {"kernel": taylor(26), "scale": 2.0}
exact, worst = softmax_attention(Q, K, V, scale=2.0), 0.0
for cut in range(10):
    parts = slice(cut), slice(cut, None)
    before, after = ([x[..., part, :] for x in (Q, K, V)] for part in parts)
    first, past = parallel_attention(*before, **options)
    rest, _ = recurrent_attention(*after, **options, initial_state=past)
    worst = max(worst, (torch.cat([first, rest], dim=-2) - exact).abs().max().item())
print("scores below 4:", bool((2 * Q @ K.mT).abs().max() < 4))
print("worst distance to softmax over all cuts below 1e-9:", worst < 1e-9)

# %% [markdown]
# ## Gradients flow the same
#
# A recurrence that only agrees in its outputs could still train differently. It does not: the two forms are one function, so they have one gradient. And at a high order it is the gradient of softmax.

# %%
inputs = [x.clone().requires_grad_() for x in (Q, K, V)]
outs = {
    "recurrent": recurrent_attention(*inputs, **options)[0],
    "parallel": parallel_attention(*inputs, **options)[0],
    "softmax": softmax_attention(*inputs, scale=2.0),
}
gradients = {name: torch.autograd.grad(out.square().sum(), inputs) for name, out in outs.items()}
for name in ("parallel", "softmax"):
    pairs = zip(gradients["recurrent"], gradients[name], strict=True)
    same = [torch.allclose(a, b, rtol=0, atol=1e-8) for a, b in pairs]
    print(f"recurrent = {name}, for q, k and v:", same)

# %% [markdown]
# ## The price
#
# Each order wants a larger state. Count the rows, `num_features(d, order)`, packed as the library stores them; each row is $e + 1$ numbers.
#
# **Predict:** from which order on is the toy's state larger than the 16 numbers of its KV cache?

# %%
from softattn_lib import num_features

print("order       rows at d = 2   at d = 64")
for order in (0, 1, 2, 3, 4, 10):
    print(f"{order:5} {num_features(2, order):18,} {num_features(64, order):18,}")

# %% [markdown]
# On the toy a row is 3 numbers. Order 1 keeps 9 of them, order 2 with its 6 rows already 18, more than the cache. At width 64, order 1 is cheap, order 2 has 2,145 rows, and order 10 more than $10^{11}$. The exact sum has infinitely many. ([03](03_powers_of_an_inner_product.ipynb) says from how many tokens on each order pays.)
#
# So the sum of RNNs is a way to *understand* softmax attention, and low orders are a way to compute something near it. It is not a cheap way to compute softmax itself.
#
# ## Is softmax attention a finite-state RNN?
#
# **A common belief: "with enough orders, softmax attention is an RNN with a finite state."** Take 12 tokens of width 2 and the 12 × 12 matrix of their weights, each query with every key, without a mask. At order 2, with 6 rows in the state, its rank cannot be more than 6.

# %% tags=["nbval-ignore-output"]
predict("05-rank", "What is the rank of the weights of exp?", low=1, high=12, step=1)

# %%
x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))  # (T, d), queries and keys
scores = x @ x.T  # (T, T)
for order in (1, 2, 3):
    rank = torch.linalg.matrix_rank(taylor(order)(scores)).item()
    print(f"order {order}: {num_features(2, order):2} rows in the state, rank {rank}")
full = torch.linalg.matrix_rank(scores.exp()).item()
print("exp:                       rank", full)
reveal("05-rank", full, "exp holds all orders, and each brings features of its own. "
       "The number of tokens is the only limit.")

# %% [markdown]
# A weight read from a state of $D$ rows is an inner product of $D$ features, so the matrix of weights has rank $D$ at most. Think of queries that all read the same keys. With queries equal to the keys, as here, the matrix of exp has full rank for *any* number of different tokens (in exact arithmetic), because $e^{q k^\top}$ is a strictly positive definite kernel; dividing each row by its sum leaves the rank as it is. So no state of this kind, whatever its features, gives the weights of exp for more tokens than it has rows. (The argument is ours.)
#
# Equality for all inputs takes all orders; any finite number of them is an approximation, good for scores of limited size.

# %% [markdown]
# ## The whole way on one page
#
# The library keeps each numbered equation of 01 to 05 beside the function that computes it. The cell makes a table of them, and checks every one once more on random tensors of unequal sizes: `check` raises where the two sides differ.

# %%
from IPython.display import Markdown

table = ["| | equation | what it says | computed by |", "|---|---|---|---|"]
derivation = {n: e for n, e in equations.EQUATIONS.items() if e.notebook < "06"}
for number, equation in derivation.items():
    equations.check(number)
    formula = equation.latex.replace("|", r"\vert ")  # a bare | would end the table's cell
    name = equation.function.split(".")[-1]
    table.append(f"| {number} | ${formula}$ | {equation.title} | `{name}` |")
Markdown("\n".join(table))

# %% [markdown]
# Read from top to bottom it is the derivation: attention (1), the series (2), the powers (3), the state (4), the sum (5).
#
# **Four questions to close with.** Answer before you unfold.
#
# 1. Which step of the derivation needs the powers of notebook 03?
# 2. What does order 0 know about the query?
# 3. Why even orders?
# 4. Why does a long query ask more sharply in softmax, and not in a pure power?
#
# <details><summary>Answers</summary>
#
# 1. The second, *factor*: without it the query cannot leave the sum over the past.
# 2. Nothing. It is the running sum of the values, the same for every query.
# 3. Even truncations of exp are positive everywhere, so the weights make an average. Odd ones are negative for large negative scores, and their sum can vanish.
# 4. A factor $c$ multiplies order $n$ by $c^n$. In a mixture that shifts the weight to high orders; in a pure power it cancels.
#
# </details>
#
# ## Try it
#
# 1. Give the toy a fifth token of your own and add it to the final `state` of "Stop, keep the state, go on" with one `attention_step`. Compare with `parallel_attention` on five tokens.
# 2. Find a factor $c > 0$ for which order 1 has the denominator 0 for the query $-c\,Q_4$. (The scores of $-Q_4$ add up to $-1.5$.)
# 3. Build a kernel of your own from the orders 0 and 2 only, `Polynomial((1, 0, 0.5))`. Which queries can it no longer tell apart?
#
# <details><summary>What to expect</summary>
#
# 1. The same output: the state had everything.
# 2. $4 - 1.5\,c = 0$ at $c = 8/3$.
# 3. A query and its opposite: even powers do not see the sign.
#
# </details>

# %%
print("2:", torch.allclose(taylor(1)(-8 / 3 * q[3] @ k.T).sum(), torch.tensor(0.0), atol=1e-12))
even = {"kernel": Polynomial((1, 0, 0.5)), "scale": 1.0}
one, other = (recurrent_attention(x, k, v, **even)[0] for x in (q, -q))
print("3:", torch.allclose(one, other))

# %% [markdown]
# ## What you saw
#
# - Expand, factor, swap, name: softmax attention is $G_t$ times a sum of linear RNNs, one for each order (5.2). Order 1 is linear attention, order 0 a running sum of values.
# - The denominator is the same sum with ones for values, one more column of each state.
# - Cut at an order $N$ it is a recurrent network with a finite state. How good depends on the size of the scores, and odd orders can break.
# - Any split, any form, one gradient. The price is the state: $\binom{d + N}{N}$ rows, and infinitely many for equality.

# %% [markdown]
# **Exercises** to this notebook: [05](exercises/05_softmax_attention_is_a_sum_of_rnns.ipynb)
#
# Back to [04 Linear attention is an RNN](04_linear_attention_is_an_rnn.ipynb) · On to [06 A real model](06_a_real_model.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
