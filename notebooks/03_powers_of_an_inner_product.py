# %% [markdown]
# # Powers of an inner product
#
# **Minutes:** 25
#
# **Goals:** after this notebook you can
#
# - write $(q \cdot k)^2$ as an inner product of two longer vectors, with a pencil
# - prove that this works for every power, by one rule and an induction
# - throw out the repetitions, and count what is left for one order and for all orders up to $N$
# - name products that order 2 has and no element-wise map can have, and state exactly what that proves
# - say how large a state becomes, and when a KV cache is smaller
#
# **Before:** [02](02_exp_as_a_series.ipynb) (why we want powers of the score). The small model is not needed.
#
# **You know most of this?** Read [Every power](#Every-power), [The same number again and again](#The-same-number-again-and-again), [The price](#The-price), then [What you saw](#What-you-saw).
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $d$ width of a query or key; $e$ width of a value, or the base of exp; $D$ features of a key; $Q$ queries; $K$ keys; $n$ an order; $N$ the highest order kept; $\phi$ features ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import math
from collections import Counter

import torch

from softattn_lib import doctor, equations, features, polynomials, taylor, toy
from softattn_lib.features import kronecker_power, symmetric_power
from softattn_lib.predictions import predict, reveal
from softattn_lib.widgets import state_growth

doctor.check()
torch.set_default_dtype(torch.float64)

# %% [markdown]
# ## The square, with a pencil
#
# 02 left us with powers of the score. The score itself unties: $Q_t$ on the left, $K_s$ on the right. Does its square? Take the fourth query and the third key of the toy, whose score is 3.

# %%
q, k = toy.q[3], toy.k[2]  # (d,), (d,)
print("q", q.tolist(), "k", k.tolist())
print("score", (q @ k).item(), "squared", (q @ k).item() ** 2)

# %% [markdown]
# With $d = 2$, for a query $q$ and a key $k$, the square has four products, two of them equal:
#
# $(q_1 k_1 + q_2 k_2)^2 = q_1 q_1 \, k_1 k_1 + q_1 q_2 \, k_1 k_2 + q_2 q_1 \, k_2 k_1 + q_2 q_2 \, k_2 k_2$
#
# In each product the $q$'s stand together and the $k$'s stand together. **Predict:** collect the four $q$-parts in one row, and the four $k$-parts in another. What is their inner product?

# %%
q_part = torch.stack([q[0] * q[0], q[0] * q[1], q[1] * q[0], q[1] * q[1]])  # (d * d,)
k_part = torch.stack([k[0] * k[0], k[0] * k[1], k[1] * k[0], k[1] * k[1]])  # (d * d,)
print(q_part.tolist(), k_part.tolist())
print("inner product", (q_part @ k_part).item())

# %% [markdown]
# It is 9. The square of an inner product *is* an inner product, of longer rows, and each of them is made from $q$ alone or from $k$ alone. That is the untying.
#
# The row of all products $x_i x_j$ of the entries of a row $x$ is the **Kronecker square** $x^{\otimes 2}$. With a third factor it is $x^{\otimes 3}$, and so on: $x^{\otimes n}$ has $d^n$ entries, and $x^{\otimes 0} = 1$.

# %%
print("order 0:", kronecker_power(q, 0).tolist())
print("order 1:", kronecker_power(q, 1).tolist())
print("order 2:", kronecker_power(q, 2).tolist())
print("order 3:", kronecker_power(q, 3).tolist())

# %% [markdown]
# What is it good for? The query comes out of the sum over the past. All that the keys have to say at order 2 is one matrix, made without any query:

# %%
past = kronecker_power(toy.k, 2).T @ toy.v  # (d * d, e): sum over s of k_s's square times v_s
one_by_one = sum((q @ toy.k[s]) ** 2 * toy.v[s] for s in range(4))  # (e,)
print("query last: ", (kronecker_power(q, 2) @ past).tolist())
print("one by one: ", one_by_one.tolist())

# %% [markdown]
# That matrix can be added up token by token, and 04 and 05 make a recurrent network of it. (It is the kernel trick read backwards: the long rows cost more than the score, but they can be summed before the query comes.) First we make sure that it works for every power.

# %% [markdown]
# ## Every power
#
# $$(q k^\top)^n = \sum_{i=1}^{d^n} \big(q^{\otimes n}\big)_i \big(k^{\otimes n}\big)_i = \langle q^{\otimes n}, k^{\otimes n} \rangle \tag{3.1}$$
#
# This is the paper's equation (7). **Predict:** how many products does the right side add up for $n = 4$, and what do they add up to?

# %% tags=["eq-3-1"]
for n in range(5):
    q_n, k_n = kronecker_power(q, n), kronecker_power(k, n)  # (d ** n,)
    print(f"n = {n}: {len(q_n):2} products, sum {(q_n @ k_n).item():4.0f}, 3 ** n = {3**n}")
print(equations.check("3.1"))

# %% [markdown]
# ## Why it holds
#
# One rule is enough. For two rows $a$ and $b$, $a \otimes b$ is the row of all products $a_i b_j$. With two more rows, $x$ and $y$:
#
# $$\langle a \otimes b,\; x \otimes y \rangle = \langle a, x \rangle \langle b, y \rangle \tag{3.2}$$
#
# Here $a, x$ and $b, y$ have different lengths on purpose: only partners must match.

# %% tags=["eq-3-2"]
a, x = q, k  # two entries each
b, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, -1.0])  # three each
left = torch.kron(a, b) @ torch.kron(x, y)
right = (a @ x) * (b @ y)
print(f"{left:.0f} = {a @ x:.0f} * {b @ y:.0f}:", torch.equal(left, right))
print(equations.check("3.2"))

# %% [markdown]
# The rule is the distributive law read backwards: the left side adds $a_i b_j x_i y_j$ over all $i$ and $j$, and that sum is the product of two sums.
#
# **Induction.** For $n = 0$ both sides of 3.1 are 1. For the step, split one factor off, $x^{\otimes n} = x^{\otimes (n-1)} \otimes x$, and use the rule:
#
# $\langle q^{\otimes n}, k^{\otimes n} \rangle = \langle q^{\otimes (n-1)}, k^{\otimes (n-1)} \rangle \, \langle q, k \rangle = (q k^\top)^{n-1} \, q k^\top.$

# %%
square_q, square_k = kronecker_power(q, 2), kronecker_power(k, 2)
cube_q, cube_k = torch.kron(square_q, q), torch.kron(square_k, k)
print("one factor split off:", torch.equal(cube_q, kronecker_power(q, 3)))
print(f"{cube_q @ cube_k:.0f} = {square_q @ square_k:.0f} * {q @ k:.0f}")

# %% [markdown]
# ## The same number again and again
#
# **Predict:** $q^{\otimes 3}$ has 8 entries. How many of them are different products? ($q_1 q_1 q_2$ and $q_1 q_2 q_1$ are the same one.)

# %%
indices = torch.cartesian_prod(*[torch.arange(1, 3)] * 3)  # (8, 3): which factors each entry has
products = Counter("".join(f"q{i}" for i in sorted(row)) for row in indices.tolist())
print(dict(products))
print(kronecker_power(q, 3).tolist())

# %% [markdown]
# Four: 1, 3, 3 and 1 times. The number of repetitions is a multinomial coefficient: in how many orders the same factors can stand. So each product needs to be kept only once, with its count:
#
# $$(q k^\top)^n = \sum_{|\alpha| = n} \binom{n}{\alpha} q^{\alpha} k^{\alpha} \tag{3.3}$$
#
# $\alpha = (\alpha_1, \dots, \alpha_d)$ says how often each entry is a factor: $q^\alpha = q_1^{\alpha_1} \cdots q_d^{\alpha_d}$ and $\binom{n}{\alpha} = n! / (\alpha_1! \cdots \alpha_d!)$. The paper keeps all $d^n$ entries; packing them is our choice here, as in other work, and the sum is the same. In code it is `symmetric_power`, which puts $\sqrt{\text{count}}$ on either side.

# %% tags=["eq-3-3"]
cube = 0.0
for j in range(4):  # alpha = (3 - j, j)
    q_product, k_product = q[0] ** (3 - j) * q[1] ** j, k[0] ** (3 - j) * k[1] ** j
    cube += math.comb(3, j) * q_product * k_product
packed = symmetric_power(q, 3) @ symmetric_power(k, 3)
print(f"by counts {cube:.0f}, packed {packed:.0f}, entries {len(symmetric_power(q, 3))} for 8")
print(equations.check("3.3"))

# %% [markdown]
# ## Counting
#
# There are $\binom{d+n-1}{n}$ different products of $n$ factors out of $d$, against $d^n$ entries of the Kronecker power. (Most products have three different factors. In how many orders can those stand?)

# %% tags=["nbval-ignore-output"]
predict(
    "03-packing",
    "By what factor does packing shrink order 3 at d = 64?",
    low=1, high=20, step=1, unit="times",
)

# %%
for d in (2, 8, 64):
    for n in (2, 3):
        full = features.features_of_degree(d, n, packed=False)
        packed = features.features_of_degree(d, n)
        print(f"d = {d:2}, order {n}: {full:7,} -> {packed:6,}, {full / packed:.2f} times fewer")
reveal("03-packing", full / packed, "three different factors can stand in 3! = 6 orders, and few "
       "products have two equal ones.")

# %% [markdown]
# Close to $3! = 6$, and in general never more than $n!$. That is worth having, but it is a constant: at $d = 64$ order 3 still needs 45,760 products of every key.
#
# **Say why** the count is $\binom{d+n-1}{n}$.
#
# <details><summary>An answer</summary>
#
# Write a product as $n$ stars in $d$ boxes, one box per entry of the row: $q_1 q_1 q_2$ is `**|*`. Every row of $n$ stars and $d - 1$ bars is one product, and there are $\binom{d+n-1}{n}$ ways to choose which of the $d + n - 1$ places are stars.
#
# </details>

# %% [markdown]
# ### All orders in one row
#
# Put the orders $0, 1, \dots, N$ side by side, with the series' $1/n!$ and the counts on the query's side. Then *one* inner product is the whole cut-off series. Here is order 2 on the toy's key.

# %%
p = taylor(2)
query = features.polynomial_features(q, p, "query")  # (D,)
key = features.polynomial_features(k, p, "key")  # (D,)
print("query", query.tolist())
print("key  ", key.tolist())
print("inner product", (query @ key).item(), "= order 2 at score 3:", p(q @ k).item())

# %% [markdown]
# The key's row is $1$; $k_1, k_2$; $k_1^2, k_1 k_2, k_2^2$. It is free of all coefficients, so it does not matter to the keys which polynomial the query will ask for.
#
# Together the orders up to $N$ have $D = \binom{d+N}{N}$ entries. The trick: give the row one more entry that is always 1; then every product of *at most* $N$ factors is a product of exactly $N$.

# %%
for d, order in ((2, 2), (4, 4), (64, 2), (64, 4)):
    by_order = sum(math.comb(d + n - 1, n) for n in range(order + 1))
    together = features.num_features(d, order)
    same = together == by_order == math.comb(d + order, order)
    print(f"d = {d:2}, N = {order}: {together:7,} {same}")

# %% [markdown]
# ## What only products can see
#
# Linear attention (04) replaces $e^{q \cdot k}$ by $\langle \phi(q), \phi(k) \rangle$, often with an **element-wise** $\phi$ such as relu or elu + 1: entry $i$ of $\phi(k)$ depends on $k_i$ alone. The paper argues for the higher orders that such maps cannot create the cross terms $k_i k_j$. Let us make that a statement one can test; the test is ours.
#
# For one fixed query, an element-wise weight $w$ is a function of $k_1$ plus a function of $k_2$. For such a sum the four corners of a rectangle obey $w(k_1, k_2) + w(k_1', k_2') - w(k_1, k_2') - w(k_1', k_2) = 0$: every part occurs once with plus and once with minus.

# %%
corners = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])  # (4, d) keys
signs = torch.tensor([1.0, 1.0, -1.0, -1.0])
ones = torch.tensor([1.0, 1.0])  # the query
print("scores", (corners @ ones).tolist())
print("square", ((corners @ ones) ** 2).tolist())

# %% [markdown]
# The square tells keys whose entries *agree* in sign (weight 4) from keys whose entries do not (weight 0). Can a map of the single entries do that?

# %% tags=["nbval-ignore-output"]
predict(
    "03-rectangle",
    "Identity, relu, elu + 1, each entry squared: which of them give 0 in the rectangle test?",
    ["the identity alone", "all but the squared entries", "all four"],
)

# %%
maps = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "elu + 1": lambda x: torch.nn.functional.elu(x) + 1,
    "each entry squared": lambda x: x**2,
}
zeros = 0
for name, phi in maps.items():
    weights = phi(corners) @ phi(ones)  # (4,)
    zeros += abs(signs @ weights).item() < 1e-12
    print(f"{name:19} {weights.numpy().round(2)} rectangle {abs(signs @ weights):.2f}")
result = {1: "the identity alone", 3: "all but the squared entries", 4: "all four"}[zeros]
reveal("03-rectangle", result, "each weight is a function of k_1 plus a function of k_2, and over "
       "the four corners each of their values occurs once with plus and once with minus.")

# %% [markdown]
# That holds for all element-wise maps, whatever function they use: as much as the two agreeing keys get together, the two disagreeing ones get too. Squaring each entry does not help; it takes the *product* $k_1 k_2$. Now powers of the score:

# %%
for name, function in {"order 2: score ** 2": torch.square, "exp(score)": torch.exp}.items():
    weights = function(corners @ ones)  # (4,)
    print(f"{name:19} {weights.numpy().round(2)} rectangle {abs(signs @ weights):.2f}")

# %% [markdown]
# The square gives 8; `exp`, which holds all orders, gives 5.52. No element-wise map can imitate either of them.
#
# What this does not say: a network may mix channels before the map (the projection to keys does, but adds, it does not multiply), and a normalizer divides by something that depends on all channels. The statement is about the weights themselves, for a map that works on each entry of $k$ alone.

# %%
order_2_only = symmetric_power(corners, 2)  # (4, 3): k1 ** 2, sqrt(2) k1 k2, k2 ** 2
print(order_2_only.numpy().round(3))
print("rectangle of each feature:", (signs @ order_2_only).numpy().round(3))

# %% [markdown]
# The cross term alone carries the difference: the two squares add up to 0 over the rectangle.

# %% [markdown]
# ## The price
#
# Order $n$ of a state keeps $d^n \times e$ numbers, or $\binom{d+n-1}{n} \times e$ packed, plus one column for the denominator. That does not grow with the text, and it is large. A KV cache holds $2 d$ numbers per token (with $e = d$).
#
# **A common belief: "recurrent means small state."** Move the order and the width. **Before you do:** at $d = 64$ the cache overtakes the state of order 2 after about a thousand tokens, as [00](00_start_here.ipynb) printed. And that of order 3: after 2,000, 20,000 or 200,000?

# %% tags=["nbval-ignore-output"]
widget = state_growth.mount()
widget

# %%
for order in (1, 2, 3, 4):
    widget.order.value = order
    print(f"order {order}: {widget.figure.data[2].x[0]:7,} tokens to break even")
widget.reset()

# %% [markdown]
# Each order more makes the state many times larger. Softmax itself needs all orders, so this construction gives it no state of finite size; [05](05_softmax_attention_is_a_sum_of_rnns.ipynb) shows that no other list of features does either.
#
# The same by hand. From order $N - 1$ to $N$ the number of features becomes $\binom{d+N}{N} / \binom{d+N-1}{N-1} = (d + N) / N$ times as large.

# %%
for order in (1, 2, 3, 4):
    state = math.comb(64 + order, order) * (64 + 1)  # D rows of e + 1 numbers
    larger, break_even = (64 + order) / order, math.ceil(state / 128)
    print(f"order {order}: {state:10,} numbers, times {larger:4.1f}, {break_even:7,} tokens")
print("order for scores up to 5, within 10 %:", polynomials.order_for_tolerance(0.1, 5.0))

# %% [markdown]
# At order 3 a state pays after 24,327 tokens, at order 4 after 413,555, and scores up to 5 want order 18 if every single weight is to be within 10 %. So the exact recurrence is a way to *understand* softmax, and low orders are a way to *compute* something like it. Narrow heads help, since the width is what is raised to a power:

# %%
for d in (4, 8, 16, 64):
    sizes = "".join(f"{features.num_features(d, order):18,}" for order in (2, 4, 10))
    print(f"d = {d:2}, D for N = 2, 4, 10:{sizes}")


# %% [markdown]
# ## Try it
#
# 1. Expand $(q_1 k_1 + q_2 k_2 + q_3 k_3)^2$ with a pencil. How many entries are there in full, and how many packed? Check with `features_of_degree(3, 2)`.
# 2. Write `kronecker_power` yourself, as a loop over `torch.kron`. Compare on `q`.
# 3. Find an element-wise map of *your own* and run the rectangle test on it. Then try $\phi(k) = k / \lVert k \rVert$. Is it element-wise?
#
# <details><summary>What to expect</summary>
#
# 1. Nine in full, six packed: three squares and three cross terms, each cross term twice.
# 2. Start with `torch.ones(1)` and multiply $n$ times.
# 3. Always 0 for an element-wise map. The cosine map is not element-wise: the length in its denominator mixes the entries. (On these four corners all lengths are equal, so take other corners to see it.)
#
# </details>

# %% [markdown]
# The answers, checked:

# %%
def my_power(x, n):
    power = torch.ones(1)
    for _ in range(n):
        power = torch.kron(power, x)
    return power


print(features.features_of_degree(3, 2, packed=False), features.features_of_degree(3, 2))
print(torch.equal(my_power(q, 3), kronecker_power(q, 3)))

# %% [markdown]
# The cosine map on the corners of a rectangle that is no square:

# %%
box = torch.tensor([[1.0, 1.0], [3.0, 2.0], [1.0, 2.0], [3.0, 1.0]])  # (4, d) keys
cosine = box / box.norm(dim=-1, keepdim=True)
print(f"rectangle {(signs @ (cosine @ ones)).item():.3f}")

# %% [markdown]
# ## What you saw
#
# - $(q \cdot k)^n$ is an inner product of $q^{\otimes n}$ and $k^{\otimes n}$: query and key come apart. One rule and an induction prove it.
# - Each product is needed once, with its count: $\binom{d+n-1}{n}$ instead of $d^n$, and $\binom{d+N}{N}$ for all orders up to $N$.
# - Element-wise maps have no cross terms $k_i k_j$; orders from 2 on do.
# - The state of such a series does not grow with the text, and grows fast with the order.

# %% [markdown]
# **Exercises** to this notebook: [03](exercises/03_powers_of_an_inner_product.ipynb)
#
# Back to [02 exp as a series](02_exp_as_a_series.ipynb) · On to [04 Linear attention is an RNN](04_linear_attention_is_an_rnn.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
