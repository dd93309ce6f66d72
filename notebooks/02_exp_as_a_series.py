# %% [markdown]
# # exp as a series
#
# **Minutes:** 30
#
# **Goals:** after this notebook you can
#
# - write `exp` as a sum of powers, cut it off at an order, and bound what is missing
# - say which orders keep every weight positive, and prove it in two lines
# - choose the order that a given size of scores needs
# - name two things that go wrong when a cut-off series is treated like `exp`
# - rebuild one softmax output order by order
#
# **Before:** [01](01_softmax_attention.ipynb) (the toy). The small model is not needed.
#
# **You know most of this?** Read [Even orders have a floor](#Even-orders-have-a-floor), [Two habits that break](#Two-habits-that-break), [The numerator, expanded](#The-numerator,-expanded), then [What you saw](#What-you-saw).
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $e$ width of a value, or the base of exp; $Q$ queries; $K$ keys; $V$ values; $O$ outputs; $G$ one over the denominator; $n$ an order; $N$ the highest order kept ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import math

import numpy as np
import torch

from softattn_lib import doctor, equations, figures, polynomials, softmax_attention, taylor, toy
from softattn_lib.predictions import predict, reveal
from softattn_lib.widgets import approximation_error

doctor.check()
torch.set_default_dtype(torch.float64)
np.set_printoptions(suppress=True)

# %% [markdown]
# ## Why a series
#
# In 01 the weight $e^{Q_t K_s^\top}$ tied every old key to the newest query. To untie them we want the query's part and the key's part as two factors. With a plain score that is easy: $Q_t K_s^\top$ *is* such a product. With its square it will turn out to be (03). With `exp` it is not.
#
# So we write `exp` as a sum of powers, for every number $x$:
#
# $$e^{x} = \sum_{n \ge 0} \frac{x^n}{n!} \tag{2.1}$$

# %% [markdown]
# In the last row of the toy, the third key scores 3. **Predict:** which of the terms $3^n / n!$ is the largest? And how many does it take to get $e^3 \approx 20.1$?

# %% tags=["eq-2-1"]
terms = [3.0**n / math.factorial(n) for n in range(13)]
for n, term in enumerate(terms):
    print(f"order {n:2}: term {term:7.4f}, sum so far {sum(terms[: n + 1]):7.4f}")
print(f"exp(3) = {math.exp(3):.4f}")
print(equations.check("2.1"))

# %% [markdown]
# Orders 2 and 3 bring the most, 4.5 each. Beyond them every factor $3/n$ is below 1, and the factorial wins. At order 12 the sum is right to three decimals. (The check sums 31 terms.)
#
# Without the factorial the powers would grow for ever: $1 + 3 + 9 + \dots$. Dividing by $n!$ is what makes the sum end somewhere for every score.

# %% [markdown]
# ## Cutting it off
#
# We keep the orders 0 to $N$ and drop the rest. In code $N$ is `order`, and `taylor(order)` is the polynomial $P_N$ that remains, ready to be called on scores.

# %%
print(taylor(3).coefficients)
scores = toy.k @ toy.q[3]  # (T,): the last row's scores 1, -2, 3, -0.5
print("exp     ", scores.exp().numpy().round(3))

# %% [markdown]
# Now the same scores, order by order. Order 1 is the straight line $1 + x$.

# %% tags=["nbval-ignore-output"]
predict(
    "02-odd-orders",
    "Which of the orders 1 and 3 give the score -2 a negative weight?",
    ["neither", "order 1 only", "order 3 only", "both"],
)

# %%
for order in (0, 1, 2, 3, 4, 6, 8):
    print(f"order {order}:", taylor(order)(scores).numpy().round(3))
negative = [order for order in (1, 3) if taylor(order)(-2.0) < 0]
result = {0: "neither", 1: f"order {sum(negative)} only", 2: "both"}[len(negative)]
reveal("02-odd-orders", result, "far to the left the highest power outweighs the others, and an "
       "odd power of a negative number is negative.")

# %% [markdown]
# Orders 1 and 3 give the second key a *negative* weight. No mean has negative weights: such a row can leave the range of its values, and its denominator can be 0. The even orders stay above 0 here. Is that luck?

# %% tags=["nbval-ignore-output"]
x = torch.linspace(-5, 3, 81)
curves = {"exp": x.exp()} | {f"order {n}": taylor(n)(x) for n in (1, 2, 3, 4)}
figures.lines_figure(
    x,
    curves,
    title="exp and its first orders",
    caption="To the left, even orders turn up and odd orders turn down. None follows exp to 0.",
    x_title="score x",
    y_title="weight",
)

# %% [markdown]
# ## Even orders have a floor
#
# It is not luck. The library finds the exact minimum of each polynomial, here over $|x| \le 50$.

# %%
for order in range(9):
    p = taylor(order)
    smallest = p.minimum_on(50)
    print(f"order {order}: smallest weight {smallest:9.3g}, always positive: {p.is_positive}")

# %% [markdown]
# Even orders never go below 0.5, 0.270, 0.149, 0.083 (orders 2, 4, 6, 8). Odd orders fall without end.
#
# Two lines prove it. The slope of $P_N$ is $P_{N-1}$, so where an even $P_N$ is lowest, at $x^*$, $P_{N-1}(x^*) = 0$. There only the last term is left: $P_N(x^*) = P_{N-1}(x^*) + x^{*N}/N! = x^{*N}/N! > 0$, since at $x^* = 0$ the slope is 1, not 0.
#
# The cell finds $x^*$ for order 4 by halving an interval, and checks both lines.

# %%
low, high = -3.0, 0.0  # P_3 is negative at -3 and positive at 0
for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if taylor(3)(middle) < 0 else (low, middle)
print(f"x* = {high:.4f}, slope there {abs(taylor(3)(high)):.4f}")
print(f"last term {high**4 / 24:.4f}, lowest value of order 4 {taylor(4).minimum_on(50):.4f}")

# %% [markdown]
# A floor has its price. A very bad key should get a weight near 0, and an even order cannot give it one.
#
# **Predict:** order 2, scores 3 and $-10$. Which key gets the larger weight?

# %%
far = torch.tensor([3.0, -10.0])
print("exp:", far.exp().numpy().round(4))
for order in (2, 8, 40):
    print(f"order {order}:", taylor(order)(far).numpy().round(4))

# %% [markdown]
# The wrong one, by far. Order 8 makes it worse before order 40 makes it right. Positive is not the same as close. A cut-off series is an approximation for scores of limited size, and the size decides everything. So: how large may they be?

# %% [markdown]
# ## What is missing
#
# $$\Big| e^{x} - \sum_{n \le N} \frac{x^n}{n!} \Big| \le \frac{|x|^{N+1}}{(N+1)!} \max(1, e^{x}) \tag{2.2}$$
#
# The right side is the first dropped term, times $e^x$ if $x$ is positive. We test it at the four scores of the toy, for order 4.

# %% tags=["eq-2-2"]
order = 4
gap = (scores.exp() - taylor(order)(scores)).abs()
bound = scores.abs() ** (order + 1) / math.factorial(order + 1) * scores.exp().clamp(min=1)
print("gap  ", gap.numpy().round(4))
print("bound", bound.numpy().round(4))
print("within the bound:", bool((gap <= bound).all()))
print("library, worst of |x| <= 3:", round(polynomials.remainder_bound(order, 3.0), 4))
print(equations.check("2.2"))

# %% [markdown]
# The gap is an absolute error. For a weight, the *relative* error says more: a gap of 0.3 is nothing at weight 20 and everything at weight 0.05.
#
# **Predict:** at order 4, which score comes off worse, 3 or $-3$?

# %%
for x in (3.0, -3.0):
    exact, kept = math.exp(x), taylor(4)(x)
    print(f"exp({x:+.0f}) = {exact:7.4f}, order 4: {kept:7.4f}, ratio {kept / exact:5.2f}")
worst = polynomials.weight_error_bound(4, 3.0)
print(f"library, worst |order 4 / exp - 1| of |x| <= 3: {worst:.2f}")

# %% [markdown]
# At 3 a fifth is missing; at $-3$ the weight is almost 28 times what it should be. Negative scores are the hard ones: there the terms alternate in sign, large ones cancel, and little remains.

# %% [markdown]
# ## Which orders carry the weight
#
# For a positive score every term is positive, so one can ask for the *share* of order $n$ in $e^x$. The shares add up to 1, and they are a well-known law:
#
# $$\frac{x^n / n!}{e^{x}} = \mathrm{Poisson}(x)\{n\}, \qquad x > 0 \tag{2.3}$$
#
# It is the law of the number of rare events when $x$ are expected.

# %% tags=["eq-2-3"]
n = torch.arange(9)
share = 3.0**n / torch.exp(torch.lgamma(n + 1.0)) / math.exp(3)  # lgamma(n + 1) = log n!
poisson = torch.distributions.Poisson(3.0).log_prob(n.double()).exp()
print("share of order n in exp(3):", share.numpy().round(3))
print("Poisson(3), the same:", torch.allclose(share, poisson))
print(equations.check("2.3"))

# %% [markdown]
# A Poisson law has mean $x$ and spread $\sqrt{x}$. So the orders that matter for a score $x$ sit around $x$, give or take a few $\sqrt{x}$.

# %% tags=["nbval-ignore-output"]
n = torch.arange(21)
laws = {f"score {x}": torch.distributions.Poisson(float(x)) for x in (1, 3, 10)}
figures.bars_figure(
    n.tolist(),
    {name: law.log_prob(n.double()).exp() for name, law in laws.items()},
    title="Share of each order in exp(score)",
    caption="The larger the score, the higher the orders that carry it.",
    x_title="order n",
    y_title="share",
)

# %% [markdown]
# **Predict:** the scores 1, 3, 4, 5, 10 and 30. For which of them are the orders up to ten enough, if we want 99 % of the weight?

# %%
for x in (1.0, 3.0, 4.0, 5.0, 10.0, 30.0):
    order = 0
    while taylor(order)(x) < 0.99 * math.exp(x):
        order += 1
    print(f"score {x:4.0f}: 99 % of exp needs orders 0 to {order}")

# %% [markdown]
# **A common belief: "ten orders approximate any softmax."** They keep 99 % up to a score of about 4. Score 10 needs order 18, score 30 order 43. How large the scores of a trained model are is a question of its own; [06](06_a_real_model.ipynb) measures it.
#
# Negative scores ask for more. `order_for_tolerance` gives the smallest even order that keeps *every* weight up to the radius $R$ of the scores, $|x| \le R$, within a relative tolerance.

# %%
print("radius R    10 %   1 %  0.1 %")
for radius in (0.5, 1, 2, 3, 4, 5, 8, 10):
    orders = [polynomials.order_for_tolerance(tol, radius) for tol in (0.1, 0.01, 0.001)]
    print(f"{radius:8} {orders[0]:7} {orders[1]:5} {orders[2]:6}")
print("order / R at R = 40:", polynomials.order_for_tolerance(0.01, 40) / 40)

# %% [markdown]
# Read down: the order grows with the radius, about $3.6 R$ for large ones. Read across: about two more orders buy a digit. The size of the scores matters far more than the accuracy you ask for.
#
# (This is the strictest measure: the worst is the *smallest* weight, the one at $-R$, which matters least in a mean.)

# %% [markdown]
# ## Two habits that break
#
# **A common belief: "subtracting the row's maximum never changes anything."** In 01 it did not. Here, at order 4, the shifted scores are $-2, -5, 0, -3.5$.

# %% tags=["nbval-ignore-output"]
predict(
    "02-shift",
    "At order 4, does subtracting the maximum change the shares of the four keys?",
    ["no, as for exp", "yes, but the best key stays the best", "yes, another key becomes the best"],
)


# %%
def shares(weights):
    return (weights / weights.sum()).numpy().round(4)


shifted = scores - scores.max()
print("exp:    ", shares(scores.exp()), "shifted", shares(shifted.exp()))
before, after = shares(taylor(4)(scores)), shares(taylor(4)(shifted))
print("order 4:", before, "shifted", after)
same_best = before.argmax() == after.argmax()
moved = f"yes, {'but the best key stays' if same_best else 'another key becomes'} the best"
reveal("02-shift", moved if (before != after).any() else "no, as for exp", "exp(x - m) is "
       "exp(x) times one factor, and a polynomial of x - m is no multiple of that of x.")

# %% [markdown]
# The softmax shares do not move. At order 4 the shift ruins the row: the *worst* key, score $-2$, now takes 77 %.
#
# With the maximum $m$ the factor is $e^{-m}$, common to the whole row; $P_N(x - m)$ has none in common with $P_N(x)$. Shifting by $m$ means to expand `exp` around $m$ instead of 0. That is good near $m$ and bad far from it.

# %%
around_3 = taylor(4, center=3.0)(scores)  # (T,)
print("expanded around 3:", shares(around_3))
print("expanded around 0:", shares(taylor(4)(scores)))


# %% [markdown]
# **A common belief: "more terms are always better."** Take $e^{-8} \approx 0.000335$ and add its terms one by one in float32. Each term follows from the one before, times $-8/n$.
#
# **Predict:** how good is the sum after 80 terms?

# %%
def summed(x, dtype, count=80):
    total, term = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
    for n in range(1, count + 1):
        total, term = total + term, term * x / n
    return total.item()


for dtype in (torch.float32, torch.float64):
    error = abs(summed(-8.0, dtype) / math.exp(-8) - 1)
    print(f"{dtype} off by {error:.1%}")
print(f"exp(-8) = {math.exp(-8):.6f}")

# %% [markdown]
# Four per cent in float32, and more terms do not help. The largest term is 416. Near it float32 numbers lie 0.00003 apart, and the whole answer is 0.000335: there is room for one digit. At $-12$ it is worse still.

# %%
largest = 8.0**8 / math.factorial(8)
print(f"largest term {largest:.1f}, step of float32 there {np.spacing(np.float32(largest)):.6f}")
print("more terms, same error:", summed(-8.0, torch.float32, 40) == summed(-8.0, torch.float32, 80))
print(f"exp(-12) = {math.exp(-12):.7f}, float32 sum {summed(-12.0, torch.float32):.4f}")

# %% [markdown]
# The sum at $-12$ is negative. Cancellation is not truncation: the series is right, the arithmetic is too coarse. In float64, $-8$ is fine. Positive scores never cancel, so they sum well in float32 too.
#
# An honest way out for a single number is $e^{-8} = 1 / e^{8}$. It is closed to us: a reciprocal is no polynomial of the score, and polynomials are what 03 can untie.

# %% [markdown]
# ## All of it in one picture
#
# Three controls: the order, the radius of the scores, and the point around which `exp` is expanded. The errors are those of single weights, as above.
#
# **Before you move them:** where does the series fail first? And at radius 8, which order would you choose in float64, and which in float32?

# %% tags=["nbval-ignore-output"]
widget = approximation_error.mount()
widget

# %%
for order, radius in ((4, 4.0), (5, 4.0), (30, 8.0), (40, 8.0)):
    widget.order.value, widget.radius.value = order, radius
    # the figure's traces: 7 has the worst errors at this order, 1 the weights
    (worst64, worst32), weights = widget.figure.data[7].y, widget.figure.data[1].customdata
    print(f"order {order:2}, radius {radius:.0f}: smallest weight {min(weights):7.4f}", end=", ")
    print(f"worst error {worst64:.1g}, in float32 {worst32:.1g}")
widget.reset()

# %% [markdown]
# The series fails first at the left end, where the score is lowest. At radius 8, order 30 is within 0.3 % and order 40 within a billionth, in float64. In float32 both stay at 2 %, so order 40 buys nothing there. (The library sums from the highest order down, and rounds otherwise than the loop above did on its way to 4 %.)
#
# So more orders help until the terms, which cancel on the left, are rounded more coarsely than the small number that should remain. From there on only a finer arithmetic helps, or smaller scores.
#
# The errors in the picture are measured. They agree with the library's exact bound:

# %%
for order, radius in ((4, 4.0), (5, 4.0), (30, 8.0)):
    measured = approximation_error.compute(order, radius).worst64[order]
    bound = polynomials.weight_error_bound(order, radius)
    print(f"order {order:2}: {bound:.2g}, same: {math.isclose(measured, bound, rel_tol=1e-4)}")

# %% [markdown]
# ## The numerator, expanded
#
# Now the series goes into attention. We expand `exp` in the numerator and leave $G_t$ as it is:
#
# $$O_t = G_t \sum_{s \le t} \sum_{n \ge 0} \frac{1}{n!} (Q_t K_s^\top)^n\, V_s \tag{2.4}$$
#
# **Predict:** what does the order $n = 0$ contribute to the last row? Which part of the query does it depend on?

# %% tags=["eq-2-4"]
gate = 1 / scores.exp().sum()
out = torch.zeros(2)
for n in range(13):
    part = gate * (scores**n / math.factorial(n)) @ toy.v  # (e,): what order n adds
    out = out + part
    print(f"order {n:2} adds", part.numpy().round(4), "so far", out.numpy().round(4))
print("softmax      ", softmax_attention(toy.q, toy.k, toy.v, scale=1.0)[3].numpy().round(4))
print(equations.check("2.4"))

# %% [markdown]
# Order after order, the sum walks to the output of 01, $(1.7958, 0.8846)$. The orders 2 and 3 bring most, as the score 3 made us expect.
#
# Order 0 is $G_t$ times the plain sum of the values. In the sum itself no query and no key is left. (The paper's Figure 1 draws this term as the constant 1; by its own formula it is the one computed here.)

# %%
order_0 = gate * toy.v.sum(0)  # (e,)
print("sum of values", toy.v.sum(0).tolist(), "times gate", order_0.numpy().round(4))

# %% [markdown]
# ## Whose denominator?
#
# Equation 2.4 divides by the true denominator, which needs `exp`. If the numerator stops at order $N$, one can also let the denominator stop there: then the row is a weighted mean again. Here is the distance to softmax for both.

# %%
exact = softmax_attention(toy.q, toy.k, toy.v, scale=1.0)[3]
for order in range(9):
    weights = taylor(order)(scores)  # (T,)
    true_sum = (gate * weights @ toy.v - exact).norm()
    own_sum = (weights @ toy.v / weights.sum() - exact).norm()
    print(f"order {order}: true denominator {true_sum:.4f}, its own {own_sum:.4f}")

# %% [markdown]
# On this row every order comes closer with its own denominator: what is missing above is also missing below. That is the library's default, `normalizer="sum"`.
#
# One line looks odd: order 1 beats order 2, in spite of its negative weight. **Predict:** is that a rule? Make the second value ten times larger and see.

# %%
v = toy.v.clone()
v[1] = 10 * v[1]
exact = softmax_attention(toy.q, toy.k, v, scale=1.0)[3]
for order in (1, 2, 3, 4):
    weights = taylor(order)(scores)
    print(f"order {order}: {(weights @ v / weights.sum() - exact).norm():.4f}")

# %% [markdown]
# It was luck. The negative weight fell on a small value; on a large one it shows, and order 1 is three times as far off as order 2. This project keeps even orders by default: no negative weights, and a denominator that is never 0.
#
# **Say why** the errors of 2.4 cannot be mended by choosing another $G_t$.
#
# <details><summary>An answer</summary>
#
# $G_t$ is one factor for the whole row. The missing orders change the weights *against each other*: they take too much from large scores and too little from small ones. A common factor makes the output longer or shorter and cannot change its direction.
#
# </details>

# %% [markdown]
# ## Try it
#
# 1. Which even order holds 1 % at radius 6? Move `order` below, then ask `order_for_tolerance`.
# 2. Multiply the last query by 2: the scores reach 6. Which order brings the row within 0.01 of softmax? Start from "Whose denominator?". Why is it so much lower than the answer to 1?
# 3. Find a score at which order 3 is farther from `exp` than order 2, although it keeps one term more.
#
# <details><summary>What to expect</summary>
#
# 1. Order 22.
# 2. Order 7 (or, even, 8). The strict measure asks for the smallest weight, and that one hardly matters to the mean.
# 3. Far enough to the left, for instance $-4$: order 3 is off by 5.7, order 2 by 5.0. An odd order falls where an even one rises, and from somewhat beyond $|x| = N$ its last term does more harm than good.
#
# </details>

# %%
order, radius = 4, 6.0
print(f"worst relative error {polynomials.weight_error_bound(order, radius):.3g}")

# %% [markdown]
# The answers, checked:

# %%
scores = 2 * (toy.k @ toy.q[3])
exact = scores.softmax(-1) @ toy.v
rows = [taylor(n)(scores) @ toy.v / taylor(n)(scores).sum() for n in range(10)]
print("1:", polynomials.order_for_tolerance(0.01, 6.0))
print("2:", [n for n, row in enumerate(rows) if (row - exact).norm() < 0.01])
print("3:", [round(abs(taylor(n)(-4.0) - math.exp(-4)), 1) for n in (2, 3)])

# %% [markdown]
# ## What you saw
#
# - `exp` is a sum of powers. For a score $x$ the orders around $x$ carry it, with Poisson shares.
# - Even orders keep every weight positive, with floors 0.5, 0.270, 0.149, 0.083; odd orders do not. Positive is not yet close: the size of the scores decides how many orders it takes.
# - Shifting by the maximum and summing in float32 at $-8$ are both fine for `exp` and both wrong for its series.
# - The numerator of softmax attention is a sum over orders, and each order is a power of the score.

# %% [markdown]
# **Exercises** to this notebook: [02](exercises/02_exp_as_a_series.ipynb)
#
# Back to [01 Softmax attention](01_softmax_attention.ipynb) · On to [03 Powers of an inner product](03_powers_of_an_inner_product.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
