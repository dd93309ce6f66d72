# %% [markdown]
# # Softmax attention, by hand
#
# **Minutes:** 25
#
# **Goals:** after this notebook you can
#
# - compute one row of softmax attention with a pencil: score, weigh, sum, divide
# - say what the causal mask, the scale and the row's maximum do, and in which order they come
# - name the denominator $G_t$ and explain why a recurrent network has no ready place for it
# - count what a decoder has to keep, and show that it grows with every token
#
# **Before:** inner products and matrix products; [00](00_start_here.ipynb) gives the tour. The small model is not needed.
#
# **You know most of this?** Read [Symbols](#Symbols), [The denominator gets a name](#The-denominator-gets-a-name), then [What you saw](#What-you-saw).
#
# **Notation:** $T$ number of tokens; $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $d$ width of a query or key; $e$ width of a value, or the base of exp; $D$ features of a key; $Q$ queries; $K$ keys; $V$ values; $O$ outputs; $G$ one over the denominator; $n$ an order; $N$ the highest order kept; $H$ states; $z$ states of the denominator; $\phi$ features ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import torch

from softattn_lib import doctor, equations, figures, softmax_attention, toy
from softattn_lib.predictions import predict, reveal

doctor.check()
torch.set_default_dtype(torch.float64)

# %% [markdown]
# ## Four tokens
#
# Every token carries three rows of numbers. Its **query** says what it looks for, its **key** what it can be found by, its **value** what it hands over. A trained model computes them from the token; here they are simply given, and small enough for a pencil. The notebooks 01 to 05 all use these four tokens.

# %%
q, k, v = toy.q, toy.k, toy.v  # (T, d), (T, d), (T, e) with T = 4 and d = e = 2
for row in zip(toy.tokens, q.tolist(), k.tolist(), v.tolist(), strict=True):
    print("{:<7} query {}  key {}  value {}".format(*row))

# %% [markdown]
# ## Symbols
#
# The letters are the paper's, the names those of the code. All notebooks use this table.
#
# | symbol | meaning | shape | in code |
# |---|---|---|---|
# | $T$ | number of tokens | | `T` |
# | $t$, $s$ | step of the query, step of the key; $s \le t$ | | `t`, `s` |
# | $d$, $e$ | width of a query or key, width of a value | | `d`, `e` |
# | $Q_t$, $K_s$ | one query, one key (rows) | $1 \times d$ | `q[t]`, `k[s]` |
# | $V_s$ | one value (a row) | $1 \times e$ | `v[s]` |
# | $Q_t K_s^\top$ | score of key $s$ for query $t$ | a number | `scores[t, s]` |
# | $O_t$ | output of token $t$ (a row) | $1 \times e$ | `out[t]` |
# | $G_t$ | 1 / denominator of token $t$ | a number | `gate[t]` |
# | $n$, $N$ | one order of the series, the highest order kept | | `n`, `order` |
# | $x^{\otimes n}$ | $n$-fold Kronecker power of a row (03) | $1 \times d^n$ | `kronecker_power(x, n)` |
# | $\phi(x)$ | features of a query or key (04) | $1 \times D$ | `feature_map(x)` |
# | $D$ | number of features (03) | | `num_features(d, order)` |
# | $H_t^n$ | state of order $n$ after token $t$ (05) | $d^n \times e$ | its rows of `state.numerator` |
# | $z_t^n$ | the same for the denominator (05) | $d^n \times 1$ | its rows of `state.denominator` |
#
# A row times a transposed row, $Q_t K_s^\top$, is an inner product. Steps count from 1 in formulas and from 0 in code.

# %% [markdown]
# ## One row with a pencil
#
# Take the last token. Its query is $(1, -2)$, and it sees all four keys, its own included.
#
# **Step 1, score:** one inner product per key.
#
# **Predict:** which of the four keys fits this query best? Work out one score before you run the cell.

# %%
scores = k @ q[3]  # (T,)
print(scores.tolist())

# %% [markdown]
# The third key, $(1, -1)$, wins: $1 \cdot 1 + (-2) \cdot (-1) = 3$. The second scores $-2$: it points away from the query.
#
# **Step 2, weigh:** $e^{\text{score}}$. Every weight is now positive, and one point of score more is always $e \approx 2.72$ times the weight.

# %%
weights = scores.exp()  # (T,)
print(weights.numpy().round(4))

# %% [markdown]
# **Step 3, sum:** weights times values, and the weights alone. **Step 4, divide:** the first by the second. That makes a weighted mean of the values.

# %%
numerator = weights @ v  # (e,)
denominator = weights.sum()
print("numerator  ", numerator.numpy().round(4))
print("denominator", round(denominator.item(), 4))
print("output     ", (numerator / denominator).numpy().round(4))

# %% [markdown]
# Dividing the weights first gives each value's share of the output. The shares are positive and add up to 1, so the output lies between the values. It is close to the third value, $(2, 1)$, which has 85 % of the say.

# %%
share = weights / denominator  # (T,)
print(share.numpy().round(4), "sum", round(share.sum().item(), 4))
print("85 %:", round(100 * share[2].item()) == 85)

# %% [markdown]
# ## All rows at once, and a leak
#
# One matrix product gives the scores of all queries. Here is a first, careless version for all tokens. In a language model, token $t$ has to guess token $t + 1$.
#
# **Predict:** something is wrong with it. Who sees what?

# %%
scores = q @ k.T  # (T, T): row t holds the scores of query t
weights = scores.exp()  # (T, T)
careless = weights @ v / weights.sum(-1, keepdim=True)  # (T, e)
print(careless.numpy().round(4))

# %% [markdown]
# The first output should be the first value, $(1, 0)$: there is nothing else to see yet. It is not, because every row uses all four keys, later ones too. The mask mends it: keep the lower triangle, so that query $t$ weighs the keys $s \le t$ only.

# %%
weights = scores.exp().tril()  # (T, T)
print(weights.numpy().round(4))

# %% [markdown]
# That is causal softmax attention, and the first numbered equation (the numbers are those of these notebooks, not the paper's):
#
# $$O_t = \mathrm{softmax}(Q_t K_{1:t}^\top)\, V_{1:t} = \frac{\sum_{s \le t} e^{Q_t K_s^\top} V_s}{\sum_{s \le t} e^{Q_t K_s^\top}} \tag{1.1}$$
#
# The next cell compares our four steps with the library's one call, first on the toy, then on random tensors whose five sizes all differ, so that a swapped axis could not pass.

# %% tags=["eq-1-1"]
by_hand = weights @ v / weights.sum(-1, keepdim=True)  # (T, e)
in_one_call = softmax_attention(q, k, v, scale=1.0)  # (T, e)
print(by_hand.numpy().round(4))
print("the same in one call:", torch.allclose(by_hand, in_one_call))
print(equations.check("1.1"))

# %% [markdown]
# The last row is the one from the pencil. Here are the shares of all four queries.

# %% tags=["nbval-ignore-output"]
share = weights / weights.sum(-1, keepdim=True)  # (T, T)
figures.weights_figure(
    share,
    title="Who listens to whom",
    caption="Each row adds up to 1. Above the diagonal, in the future, all is 0.",
    tokens=toy.tokens,
)

# %% [markdown]
# The caption's claims as numbers, and one that follows from them: a mean is never longer than the longest value in it.

# %%
print("rows sum to", share.sum(-1).numpy().round(4))
print("future is 0:", bool((share.triu(1) == 0).all()))
lengths, longest = by_hand.norm(dim=-1), v.norm(dim=-1).max()
print("no output is longer than the longest value:", bool((lengths <= longest).all()))

# %% [markdown]
# ## What a row cannot notice
#
# **Predict:** (a) The fourth key and value change completely. Which outputs change? (b) The first three tokens swap places. Does the fourth output change?

# %%
other_k, other_v = k.clone(), v.clone()
other_k[3], other_v[3] = torch.tensor([9.0, -9.0]), torch.tensor([100.0, 100.0])
changed = softmax_attention(q, other_k, other_v, scale=1.0) - in_one_call
print("rows that change:", (changed.abs().sum(-1) > 1e-12).tolist())

# %% [markdown]
# Changing the future changes nothing: only the last row saw the last token. Now the swap.

# %%
swap = [2, 0, 1, 3]
swapped = softmax_attention(q, k[swap], v[swap], scale=1.0)  # (T, e)
print("fourth output unchanged:", torch.allclose(swapped[3], in_one_call[3]))
print("second output unchanged:", torch.allclose(swapped[1], in_one_call[1]))

# %% [markdown]
# Permuting the past changes nothing either: a row is a sum, and a sum has no order. (The second row changed because other tokens are in *its* past now.) Models that need the order put it into queries and keys; one way, RoPE, rotates them by an angle that grows with the position.
#
# Remember this for later: what can be summed in any order can be summed **one at a time**.

# %% [markdown]
# ## The scale
#
# A score is a sum of $d$ products, so wide queries and keys make large scores. We draw 300 random queries per width, each with 16 random keys, and look at how far the scores spread and at the largest share of each row.
#
# **Predict:** how much larger are scores at $d = 1024$ than at $d = 4$?

# %%
generator = torch.Generator().manual_seed(0)
for d in (4, 64, 1024):
    queries = torch.randn(300, d, 1, generator=generator)
    rows = (torch.randn(300, 16, d, generator=generator) @ queries).squeeze(-1)  # (300, 16)
    top, top_scaled = (x.softmax(-1).amax(-1).mean() for x in (rows, rows * d**-0.5))
    print(f"d = {d:4}: spread {rows.std():4.1f}, largest share {top:.2f}, scaled {top_scaled:.2f}")

# %% [markdown]
# The spread is close to $\sqrt{d}$: sixteen times larger from 4 to 1024. At that size softmax picks one key and ignores the rest. Models therefore multiply the score by $d^{-1/2}$, and the largest share no longer depends on $d$.
#
# The paper's equations leave the scale out, so the toy uses `scale=1.0`. In the library, no `scale` means $d^{-1/2}$. Nothing is lost either way: scaling the score is scaling the query.

# %%
usual = softmax_attention(q, k, v)  # scale = d ** -0.5
short_queries = softmax_attention(q * 2**-0.5, k, v, scale=1.0)
print("scaling the query instead:", torch.allclose(usual, short_queries))
print("scale 2 ** -0.5, last row:", usual[3].numpy().round(4))
print("scale 1.0, last row:      ", in_one_call[3].numpy().round(4))

# %% [markdown]
# ## The row's maximum, and when to take it
#
# `exp` overflows: in float64 it is infinite from a score of 710 on, in float32 from 89 on. The usual cure subtracts the row's maximum from all scores. Numerator and denominator shrink by the same factor, and the ratio stays.

# %%
large = torch.tensor([998.0, 999.0, 1000.0])
print("as written:           ", (large.exp() / large.exp().sum()).tolist())
shifted = large - large.max()
print("maximum taken off:    ", (shifted.exp() / shifted.exp().sum()).numpy().round(4))
print("float64, 709 and 710: ", torch.tensor([709.0, 710.0]).exp().isinf().tolist())
print("float32, 88 and 89:   ", torch.tensor([88.0, 89.0]).float().exp().isinf().tolist())

# %% [markdown]
# Three visible keys score 0, 1 and 2. A fourth, in the future, scores 200. Somebody takes the maximum first and hides the future afterwards, in float32.

# %% tags=["nbval-ignore-output"]
predict(
    "01-late-mask",
    "The maximum is taken off first, the mask comes after. What becomes of the three weights?",
    ["they keep their shares of the row", "all three are 0"],
)

# %%
row = torch.tensor([0.0, 1.0, 2.0, 200.0], dtype=torch.float32)
visible = torch.tensor([True, True, True, False])
too_late = (row - row.max()).exp() * visible
hidden = row.masked_fill(~visible, -torch.inf)
in_time = (hidden - hidden.max()).exp()
print("maximum, then mask:", too_late.tolist(), "sum", too_late.sum().item())
print("mask, then maximum:", (in_time / in_time.sum()).numpy().round(2))
result = "all three are 0" if too_late.sum() == 0 else "they keep their shares of the row"
reveal("01-late-mask", result, "the hidden 200 was the maximum, and exp(-198) is less than the "
       "smallest number of float32.")

# %% [markdown]
# **A common belief: "a mask can be applied at any time before dividing."** The hidden 200 pushed the visible scores to $-200$, $-199$ and $-198$, and then 0 / 0 is undefined. Mask first, then take the maximum.
#
# "Subtracting the maximum never changes anything" is another one. It is true here. In [02](02_exp_as_a_series.ipynb) it fails.

# %% [markdown]
# ## The denominator gets a name
#
# The paper sets the denominator aside, under a name of its own: a number $G_t$ per token that multiplies the sum.
#
# $$G_t = \Big(\sum_{s \le t} e^{Q_t K_s^\top}\Big)^{-1}, \qquad O_t = G_t \sum_{s \le t} e^{Q_t K_s^\top} V_s \tag{1.2}$$
#
# In code it is `gate`, since that is how it acts: one factor on the whole output. It is no detail: without it the last output would be the bare numerator, (42.28, 20.83), far outside the values it is made of.

# %% tags=["eq-1-2"]
gate = 1 / weights.sum(-1)  # (T,)
gated = gate[:, None] * (weights @ v)  # (T, e)
print("gate", gate.numpy().round(4))
print("the same output:", torch.allclose(gated, in_one_call))
print(equations.check("1.2"))

# %% [markdown]
# ### Why a recurrent network has no place for it
#
# A recurrent cell keeps a state of fixed size. It updates the state with each token, then reads the state with that token's query. It never looks at an old token again.
#
# Is the denominator such a running sum? If so, the fourth is the third plus the newest weight.

# %% tags=["nbval-ignore-output"]
predict(
    "01-running-denominator",
    "The newest weight is 0.6. How much larger than the third denominator is the fourth?",
    ["by less than 0.6", "by 0.6", "by more than 0.6"],
)

# %%
denominators = 1 / gate
print("third  ", round(denominators[2].item(), 4))
print("fourth ", round(denominators[3].item(), 4))
print("newest weight", round(weights[3, 3].item(), 4))
growth, newest = denominators[3] - denominators[2], weights[3, 3]
print("grew by      ", round(growth.item(), 4))
side = "more" if growth > newest else "less"
result = "by 0.6" if torch.isclose(growth, newest) else f"by {side} than 0.6"
reveal("01-running-denominator", result, "the fourth query weighs all four keys itself. What the "
       "third query made of three of them is of no use to it.")

# %% [markdown]
# It grew by 17.1, not by 0.6. A new query weighs *all* old keys anew, so every term of the old sum is out of date. Nothing of the third sum can be reused, and all the keys have to be at hand again.
#
# To be fair, the numerator has the same trouble: $e^{Q_t K_s^\top}$ ties each old key to the newest query. The paper's answer is to untie the two in the numerator and to study separately what the factor $G_t$ does. Notebook 02 starts the untying, 05 completes it, and there you will see that the denominator can be untied in the same way.
#
# How much of the trouble is the query's? Suppose $Q_4$ had been the query all along:

# %%
same_query = (k @ q[3]).exp().cumsum(0)  # (T,): as if q[3] had been the query all along
print(same_query.numpy().round(4))
growth = same_query[3] - same_query[2]
print("now it grows by the newest weight:", torch.allclose(growth, weights[3, 3]))

# %% [markdown]
# **Say why** one fixed query would make attention a recurrent network.
#
# <details><summary>An answer</summary>
#
# With one query for all times, the weight of an old key never changes. Numerator and denominator then are running sums: two things to keep, one addition per token. What destroys this is only that the query changes, so the aim is a form in which the query stands *outside* the sum.
#
# </details>

# %% [markdown]
# ## What it costs
#
# Softmax attention can still be run token by token: keep every key and every value (the **KV cache**) and go through all of them for each new query.

# %%
cached_k, cached_v = [], []
for t in range(4):
    cached_k.append(k[t])
    cached_v.append(v[t])
    weight = (torch.stack(cached_k) @ q[t]).exp()  # (t + 1,)
    out = weight @ torch.stack(cached_v) / weight.sum()  # (e,)
    same = torch.allclose(out, in_one_call[t])
    print(f"token {t + 1}: cache {4 * (t + 1):2} numbers, same output: {same}")  # d + e per token

# %% [markdown]
# The outputs are the same, but the cache grows without end, and so does the work per token. A recurrent state of fixed size would do neither. Here are both for one head with $d = e = 64$; the state is the $d \times e$ matrix of [04](04_linear_attention_is_an_rnn.ipynb).
#
# **Predict:** after how many tokens is the cache larger than a $64 \times 64$ state?

# %%
d = e = 64
for T in (1, 32, 1024, 131072):
    cache, work = T * (d + e), T * d + T * e  # numbers; multiplications for one token
    print(f"T = {T:6}: cache {cache:10,}, work {work:10,}, state {d * e:,}")

# %% [markdown]
# They break even at 32 tokens. (The work is $T d$ multiplications for the scores and $T e$ for the sum.) After 131,072 tokens the cache of this one head holds 16,777,216 numbers. A bounded state is worth a lot, and the question of the next notebooks is what it takes to get one from softmax.

# %% [markdown]
# ## Try it
#
# 1. Change `scale` below to `0.0`. What does the last row become, and why? Then try `20.0`.
# 2. Change a single entry of `k` so that the *second* value gets more than 90 % of the last row.
# 3. Write the four steps for non-causal attention and compare with `softmax_attention(..., is_causal=False)`.
#
# <details><summary>What to expect</summary>
#
# 1. With 0 all weights are equal: the plain mean of the values, (0.5, 0.75). With 20 the largest score takes all: the third value, (2, 1).
# 2. The query is $(1, -2)$, so the second entry of the second key counts twice: at $-3$ its score is 6.
# 3. It is the careless version from above, `careless`.
#
# </details>

# %%
scale = 1.0
print(softmax_attention(q, k, v, scale=scale)[3].numpy().round(4))

# %% [markdown]
# The answers, checked:

# %%
other_k = k.clone()
other_k[1, 1] = -3.0
print("1:", torch.allclose(softmax_attention(q, k, v, scale=0.0)[3], torch.tensor([0.5, 0.75])))
print("1:", torch.allclose(softmax_attention(q, k, v, scale=20.0)[3], v[2]))
print("2:", (other_k @ q[3]).tolist(), bool((other_k @ q[3]).softmax(-1)[1] > 0.9))
print("3:", torch.allclose(softmax_attention(q, k, v, scale=1.0, is_causal=False), careless))

# %% [markdown]
# ## What you saw
#
# - Softmax attention is a weighted mean of values: score, weigh with `exp`, sum, divide. A row cannot notice the future, nor the order of the past.
# - The scale keeps scores of any width comparable. The mask comes before the row's maximum.
# - The denominator is one factor $G_t$ per token. It is no running sum, because each new query weighs all old keys anew.
# - So a decoder keeps every key and value, and its cache grows with every token.

# %% [markdown]
# **Exercises** to this notebook: [01](exercises/01_softmax_attention.ipynb)
#
# Back to [00 Start here](00_start_here.ipynb) · On to [02 exp as a series](02_exp_as_a_series.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
