# %% [markdown]
# # Beyond Taylor
#
# **Minutes:** 35
#
# **Goals:** after this notebook you can
#
# - say why the Taylor series fails on a trained model even at order 80, in numbers of one head
# - show that any polynomial of the score runs as the same recurrence
# - choose the error that matters for attention, and fit a polynomial to it
# - explain why squares stay positive, and what they pay for it
# - read off how many orders a pretrained model needs, which heads need few, and what a state costs
#
# **Before:** [05](05_softmax_attention_is_a_sum_of_rnns.ipynb) (the recurrence) and [06](06_a_real_model.ipynb) (the scores of a real model). Needs the small model, which `make model` fetches once. Without it, read on: all outputs are stored.
#
# **You know most of this?** Read [Any polynomial has the same state](#Any-polynomial-has-the-same-state), [The whole model, order by order](#The-whole-model,-order-by-order), [What a state costs](#What-a-state-costs), then [What you saw](#What-you-saw).
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $d$ width of a query or key; $e$ width of a value, or the base of exp; $Q$ queries; $K$ keys; $V$ values; $n$ an order; $N$ the highest order kept; $H$ states ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %% [markdown]
# The paper expands exp about 0 and trains with the cut series. Here we keep a trained model as it is and ask for *better coefficients*. Everything in this notebook is ours, not the paper's, unless it says so.

# %%
import torch

from softattn_lib import doctor, figures, num_features, taylor
from softattn_lib.predictions import predict, reveal

doctor.check(model=True)

# %% [markdown]
# ## Why order 80 is not enough
#
# Take the head with the lowest scores of the model: layer 18, head 8. We look at it on two texts: the Python language reference, to fit on later, and a licence, to judge on.

# %%
from softattn_lib.llama import capture_attention, load_small_model
from softattn_lib.tasks.beyond_taylor import calibration_texts, held_out_texts, sequences

model, tokenizer = load_small_model()
texts = calibration_texts()["python reference"], held_out_texts()["licence"]
fitted_on, judged_on = (
    capture_attention(model, None, sequences(tokenizer, text, 1)[0, :256]) for text in texts
)
old, new = (text.layers[18].scores()[8].double() for text in (fitted_on, judged_on))  # (T, T)

# %% [markdown]
# **Predict:** the scores of this head run from about $-60$ to about 9. Of what size is the term of order 30 in the series at $-60$? And the weight $e^{-60}$ that it is to help to compute?

# %%
from math import exp, factorial

print(f"lowest score {new[new.isfinite()].min():.0f}, highest {new.max():.0f}")
print(f"order 30 at -60: {60.0**30 / factorial(30):.0e}; exp(-60): {exp(-60):.0e}")

# %% [markdown]
# The terms must cancel this one to one part in $10^{47}$. Until the order is well beyond the largest score in size, they do not cancel at all; and then float64, with its 16 digits, cannot do it. `digits_lost` says how many decimal digits the sum of powers loses on an interval, measured against the truncated sum itself, which at these orders is still far above $e^{-60}$:

# %%
from softattn_lib.families import digits_lost

for order in (10, 20, 40, 80):
    lost = digits_lost(taylor(order), -60.0, 9.0)
    print(f"order {order:2}: powers of the score lose {lost:4.1f} digits")


# %% [markdown]
# What does that do to attention? The **misplaced weight** of [06](06_a_real_model.ipynb), half the sum over a row of how far each weight is from softmax's, tells. It lies between 0 and 1, and above 1 only where some weights are negative.

# %%
def misplaced(polynomial, scores):
    """(T,) of each row: the weight that lies on other keys than with softmax."""
    values = polynomial(scores.where(scores.isfinite(), 0)).where(scores.isfinite(), 0)
    weights = values / values.sum(-1, keepdim=True)
    return (weights - scores.softmax(-1)).abs().sum(-1) / 2


# %%
for order in (4, 8, 20, 40, 80, 120):
    off = misplaced(taylor(order), new).mean()
    print(f"Taylor, order {order:3}: {off:.2f} of the weight misplaced")

# %% [markdown]
# At order 80 the sum is still cut too early: we tried 80 digits in place of 16 on some rows, and they changed nothing. At order 120 they did: there the terms would cancel, and float64 has not the digits. (In [06](06_a_real_model.ipynb) this order was enough in the same layer: its scores do not reach as far down on that text.) And this is not only one head's trouble, as the table of the whole model will show.
#
# ## Any polynomial has the same state
#
# Look at the derivation in [05](05_softmax_attention_is_a_sum_of_rnns.ipynb) again. Where did it need that the coefficients are $1/n!$? Nowhere. The states $H_t^n$ hold powers of keys, and the coefficients come in when the query reads:
#
# $$ p(x) = \sum_{n=0}^{N} c_n\, x^n \quad\Rightarrow\quad \sum_{s \le t} p(Q_t K_s^\top)\, V_s = \sum_{n=0}^{N} c_n\, Q_t^{\otimes n} H_t^{n} \tag{12.1} $$

# %% tags=["eq-12-1"]
from softattn_lib import attention, equations
from softattn_lib.families import minimax

q, k, v = torch.randn(3, 40, 5, generator=torch.Generator().manual_seed(0)).double()  # (T, d)
best = minimax(4, -4.0, 4.0)  # other coefficients, the same order
options = {"kernel": best, "normalizer": "none", "scale": 1.0}  # some of its weights are negative
outs = [attention(q, k, v, form=form, **options)[0] for form in ("parallel", "recurrent")]
print("parallel and recurrent agree:", torch.allclose(*outs))
print("features of a key:", num_features(5, 4), "as with Taylor's coefficients")
print(equations.check("12.1"))

# %% [markdown]
# So the coefficients are ours to choose, for each head on its own, at no cost in state or time. Which are best?
#
# ## What "best" must mean
#
# Textbooks offer **minimax**: the polynomial with the smallest largest error $|p(s) - e^s|$ on an interval, found by Remez' exchange. The **Chebyshev** series comes close to it without a search. Both know only the interval.
#
# Attention needs something else. A query divides its weights by their sum. An error of 1 is nothing in a row that sums to 1,000, and a disaster in one that sums to 0.01. What counts is the error against the sum of *its own* row:
#
# $$ \min_{c_0, \dots, c_N}\; \sum_{t} \sum_{s \le t} \left( \frac{p(l_{ts}) - e^{l_{ts}}}{\sum_{u \le t} e^{l_{tu}}} \right)^{2}, \qquad l_{ts} = Q_t K_s^\top \tag{12.2} $$

# %% tags=["eq-12-2"]
print(equations.check("12.2"))

# %% [markdown]
# This is weighted **least squares** on the scores that a head was seen to give. And there is one more wish: weights should not be negative, or a sum may pass through zero. A **square** $q(s)^2$ never is: we fit $q$, of half the order, to $e^{s/2}$. (Taylor polynomials may also be **centred** elsewhere than at 0; we take the best of 41 centres.)
#

# %% tags=["nbval-ignore-output"]
predict(
    "12-family",
    "Fitted to the Python reference, judged on the licence, order 8: what misplaces least?",
    ["Taylor about the best centre", "minimax", "least squares against the row's sum", "a square"],
)

# %%
from softattn_lib.calibration import FAMILIES, fit_head
from softattn_lib.fitting import observe

observed = observe(old)
names = [name for name in FAMILIES if name != "sum_of_squares"]  # which comes later
print("misplaced weight  ", *(f"order {order:5}" for order in (4, 8, 16)))
for name in names:
    fits = [fit_head(observed, order, name, (FAMILIES[name] or ("",))[0]) for order in (4, 8, 16)]
    print(f"{name:18}", *(f"{misplaced(fit, new).mean():11.3f}" for fit in fits))

# %% [markdown]
# Orders 4 and 16 are there to compare. At order 8:

# %%
tried = {"Taylor about the best centre": "taylor_centered", "minimax": "minimax",
         "least squares against the row's sum": "least_squares", "a square": "square"}
eighth = {name: fit_head(observed, 8, name, (FAMILIES[name] or ("",))[0]) for name in names}
least = min(tried, key=lambda choice: misplaced(eighth[tried[choice]], new).mean())
reveal("12-family", least, "it keeps small weights small and positive. Minimax, best by its own "
       "measure, misplaces several times all the weight there is, and least squares is worse "
       "than the square.")

# %% [markdown]
# Least squares is the surprise: a square is a polynomial of the same order, so least squares could have chosen it. The rows tell what happened:

# %%
for name in ("minimax", "least_squares", "square"):
    rows = misplaced(eighth[name], new)
    print(f"{name:14} median row {rows.median():.2f}, worst row {rows.max():8.2f}", end=", ")
    print(f"above 1 in {(rows > 1).sum():3} of 256 rows")

# %% [markdown]
# In half of the rows least squares misplaces less than half of the weight. But it has negative weights, and where these cancel the others the sum comes close to zero, and dividing by it makes a small error a thousand times as large as all the weight. A square cannot do that.
#
# And minimax? Here is its own measure, the largest error in units of $e^{s_{max}}$:

# %%
from softattn_lib.families import interval_error

for name, fit in eighth.items():
    largest = interval_error(fit, observed.low, observed.high)
    sums = fit(new.where(new.isfinite(), 0)).where(new.isfinite(), 0).sum(-1)  # (T,)
    print(f"{name:16} largest error {largest:8.2g}, sums not positive {(sums <= 0).sum():3} of 256")

# %% [markdown]
# Minimax does what it promises: no error is larger than a tenth of $e^{s_{max}}$. But how many rows see a score near $s_{max}$?

# %%
sums = old.logsumexp(-1) - observed.high  # (T,) logarithms, in units of the largest weight
for share in (0.1, 0.01, 0.001):
    less = (sums.exp() < share).sum()
    print(f"rows that sum to less than {share} of it: {less} of 256")

# %% [markdown]
# In most rows an error of a tenth of the largest weight is more than all there is. The square has errors almost as large as the largest weight, at the few highest scores, where the row's sum is large as well.
#
# ## What a square pays
#
# A square of order $N$ has only $N/2 + 1$ numbers to choose, where a polynomial has $N + 1$. In the norm of (12.2), on the text it was fitted to, it cannot beat least squares. By how much does it lose?

# %%
from softattn_lib.fitting import fit_error

for order in (4, 8, 16):
    free = fit_head(observed, order, "least_squares", "weight")
    positive = fit_head(observed, order, "square", "weight")
    ratio = fit_error(positive, observed) / fit_error(free, observed)
    print(f"order {order:2}: the square has {ratio:.1f} times the error")

# %% [markdown]
# That is its price, and it rises with the order. In *this* head it is worth paying: at all three orders above, the square misplaced less of the weight than least squares. In a head with a narrow range of scores it may not be, as the widget will show.
#
# ## Sums of two squares
#
# Can we have positive weights and more freedom? Yes, and completely:
#
# $$ p(x) \ge 0 \text{ for all } x \quad\Leftrightarrow\quad p = q_1^2 + q_2^2 \tag{12.3} $$
#
# (The real roots of a nowhere negative polynomial are double and the others come in conjugate pairs; one of each pair makes $q_1 + i\, q_2$.)

# %% tags=["eq-12-3"]
print(equations.check("12.3"))

# %% [markdown]
# With two squares the problem is no longer linear, but it is smooth, and we may ask for what we really want: that the *output* of the head, after the output projection, is that of softmax. The library finds, by 80 steps of L-BFGS a layer, the two squares of each head and one vector that is subtracted from all keys of a key head, which softmax does not notice (the shift of [06](06_a_real_model.ipynb)). That takes minutes, so the fits are stored, a small file for each order.

# %% tags=["nbval-ignore-output"]
predict(
    "12-order",
    "All 270 heads replaced, no training: which order comes within 0.1 nats of softmax first?",
    ["2", "4", "8", "12", "none up to 32"],
)

# %%
from softattn_lib.calibration import judge, load_calibration
from softattn_lib.tasks.beyond_taylor import quiet_judge

stored = "../experiments/calibrations/sum_of_squares-{}.safetensors"
fits = [load_calibration(stored.format(order)) for order in (2, 4, 8, 12)]
print("fitted on:", ", ".join(fits[0].texts))
licence = sequences(tokenizer, texts[1], 1)[:, :256]
print(f"softmax: loss {judge(model, licence, None).loss:.2f}")
for fit in fits:
    print(f"order {fit.order:2} in all heads: loss {quiet_judge(model, licence, fit).loss:.2f}")

# %% [markdown]
# Order 8, with the same kind of recurrence as Taylor's order 8, is within a few hundredths of softmax on the first 256 tokens of a text it was not fitted to. Order 4 is not.
#
# ## See it
#
# Which family follows exp where the weight of a head *is*? Above, exp and the polynomial; the bars below show where the scores lie and where the weight lies; the lowest plot shows the weights of the last query. All families but the sums of squares are fitted to the text that is shown, while you watch.

# %% tags=["nbval-ignore-output"]
from softattn_lib.widgets import fitted_polynomial

shown = capture_attention(model, tokenizer, texts[1][:480])
widget = fitted_polynomial.mount(shown, fits)
widget

# %% [markdown]
# The same without the mouse, in the head of above and in one with a narrow range of scores:

# %%
for widget.layer.value, widget.head.value in ((18, 8), (0, 0)):
    for widget.family.value in ("taylor", "minimax", "least_squares", "square", "sum_of_squares"):
        widget.order.value = 8
        title = widget.figure.layout.title
        print(title.text.split(":")[0] + ",", title.subtitle.text)

# %% [markdown]
# ## The whole model, order by order
#
# Now all 270 heads at once, without any training: fitted to prose, code and licences, and judged on other prose (the King James Bible), code (a file of torch) and a licence (numpy's), 8,176 tokens of each. That takes hours, so the numbers come from a table with its command in [experiments](../experiments/README.md).

# %%
from softattn_lib.tasks import beyond_taylor
from softattn_lib.tasks.records import grouped, read_rows

rows = read_rows("../experiments/beyond_taylor.csv")
above = beyond_taylor.above_softmax(rows)  # family -> order -> nats
for row in rows[:3]:
    print(f"softmax on {row['text']:8} {row['held_out_loss']} nats a token")

# %% [markdown]
# One curve a family; both axes are logarithmic, and 0.1 on the left is a tenth of a nat.

# %% tags=["nbval-ignore-output"]
beyond_taylor.loss_figure(rows)

# %%
for name in above:
    losses = (f"{n}: {above[name][n]:6.3f}" for n in (2, 4, 8, 12, 16, 24, 32))
    print(f"{name:15}", *losses)

# %% [markdown]
# Up to order 16 the families fall into three groups. Taylor about 0 and what knows only an interval fail. Least squares and Taylor about the best centre get there slowly. Squares and sums of squares are positive everywhere, and get there first. At order 32 all but Taylor about 0 have arrived. There the sums of two squares come last: from order 16 on their loss rises again. A sum of two squares could always be the single square, so this is the fault of the fit to the outputs of the calibration texts, and not of the family.

# %%
best = above["sum_of_squares"]
print("order 8 within 0.10 nats:", best[8] <= 0.10, "; order 12 within 0.02:", best[12] <= 0.02)
print(f"order 2, 4, 6: {best[2]:.1f}, {best[4]:.1f} and {best[6]:.1f} nats above")
highest = max(above["taylor"])
print(f"Taylor about 0 at order {highest}: {above['taylor'][highest]:.1f} nats above")
first = [n for n in (2, 4, 8, 12) if best[n] <= 0.1] + ["none up to 32"]
reveal("12-order", str(first[0]), "positive weights that are fitted to the outputs of each head "
       "need few orders, if the scores of new texts are like those that the fit has seen.")

# %% [markdown]
# ## Which heads can do with order 2?
#
# Order 2 is the one whose state is small at $d = 64$. With order 2 in *all* heads the model is ruined. But in one head at a time? The next table replaces each of the 270 heads alone and measures the loss, on parts of the calibration texts that the fit has not seen.

# %%
heads = grouped(read_rows("../experiments/heads.csv"), by="order")  # order -> rows, one a head
damage = {n: torch.tensor([float(row["damage"]) for row in of]) for n, of in heads.items()}
for n, of in damage.items():
    print(f"order {n}: median damage {of.median():.4f} nats, worst {of.max():.2f},", end=" ")
    print(f"at most 0.001 in {(of <= 0.001).sum()} of 270 heads, above 0.02 in {(of > 0.02).sum()}")

# %% [markdown]
# Which heads are they? For each head the table holds the range of its scores, the spread of a row's scores, how many keys a row keeps (the exponential of the entropy of its weights), the weight of the first token, and how far back the rest of the weight lies. Does any of these tell the damage? The rank correlation is 1 if two quantities put the heads in the same order, $-1$ for opposite orders, and near 0 if they have nothing to do with each other.

# %% tags=["nbval-ignore-output"]
predict(
    "12-why",
    "Which tells best what replacing a head by order 2 will cost?",
    ["the spread of its scores", "its weight on the first token", "how far back it looks"],
)


# %%
def ranks(x):
    return torch.argsort(torch.argsort(x)).double()


correlation = {}
for name in ("lowest", "highest", "row_spread", "kept_keys", "first_token", "distance"):
    fact = torch.tensor([float(row[name]) for row in heads["2"]])
    correlation[name] = torch.corrcoef(torch.stack([ranks(fact), ranks(damage["2"])]))[0, 1].item()
    print(f"{name:12} rank correlation with the damage of order 2: {correlation[name]:5.2f}")
facts = {"the spread of its scores": "row_spread", "its weight on the first token": "first_token",
         "how far back it looks": "distance"}
strongest = max(facts, key=lambda choice: abs(correlation[facts[choice]]))
reveal("12-why", strongest, "a low order cannot be near exp on a wide range of scores. Still, it "
       "says little.")

# %% [markdown]
# The spread of the scores and the sharpness of the row go with the damage, as one would expect, but weakly. Where a head looks, at the first token or far back, says nothing. The rest is something that this table cannot show: how much the model relies on a head.
#
# At the far end the cause is plain. Which head is the worst, by a wide margin?

# %%
columns = ("damage", "lowest", "highest", "first_token")
for row in sorted(heads["2"], key=lambda row: -float(row["damage"]))[:3]:
    cost, lowest, highest, first = (float(row[column]) for column in columns)
    print(f"layer {row['layer']:>2}, head {row['head']}: damage {cost:.2f},", end=" ")
    print(f"scores {lowest:.0f} to {highest:.0f}, weight of the first token {first:.2f}")

# %% [markdown]
# It is the head that we looked at all along. It rests on the first token, with scores down to $-80$ for all others: "never", as firmly as nowhere else in the model. A parabola cannot say never to so many.

# %% [markdown]
# ## One head after the other
#
# Now replace more and more heads, in the order of the damage that each did alone. (Ranked once: damages need not add up.) How many can become recurrent networks of constant state before the loss on the held-out texts has risen by 1, 5 and 10 %? (The table goes in steps of ten heads.)
#
# A head's keys and values can only be forgotten when no query head reads them any more. In this model three query heads share one key head, so a **KV head is free** when all three are replaced.

# %%
table = grouped(read_rows("../experiments/replaced.csv"), by="order")  # order -> rows
for n, rows in table.items():
    for share in (0.01, 0.05, 0.10):
        row = beyond_taylor.replaced_within(rows, share)
        found = f"{row['replaced']:>3} heads, {row['free_kv_heads']:>2} of 90 KV heads free"
        print(f"order {n}, loss up to {share:.0%} higher: {found}")

# %% [markdown]
# Fewer than one would think. The first 50 heads do no harm, each by itself, or next to none. What do they do together?

# %%
for n, rows in table.items():
    together = {row["replaced"]: float(row["held_out_loss"]) for row in rows}
    alone, all_50 = damage[n].sort().values[:50].sum(), together["50"] - together["0"]
    print(f"order {n}, first 50 heads: {alone:6.3f} nats added up, {all_50:.3f} together")

# %% [markdown]
# Damages do not add up. It looks as if the model makes up for one head that is off, and cannot for many at once. (Some damages are even negative: the loss of these few texts went down, perhaps by chance.)

# %% tags=["nbval-ignore-output"]
counts = [int(row["replaced"]) for row in table["2"]]
losses = {f"order {n}": [float(row["held_out_loss"]) for row in rows] for n, rows in table.items()}
softmax = losses["order 2"][0]
at = counts.index(130)
rise = ", ".join(f"{of[at] - softmax:.1f} nats with {name}" for name, of in losses.items())
figures.lines_figure(
    counts, losses | {"softmax + 5 %": [1.05 * softmax] * len(counts)},
    title="Loss against the number of replaced heads", x_title="replaced heads, of 270",
    y_title="nats a token", caption=f"With 130 heads replaced the loss is higher by {rise}.",
)

# %% [markdown]
# ## What a state costs
#
# A state of order $N$ at $d = e = 64$ has $\binom{64 + N}{N}$ rows of 65 numbers, for each of the 90 key heads (the coefficients live on the query's side, so query heads share it). A KV cache has 128 numbers a token and key head. All in float32, for the whole model:

# %% tags=["nbval-ignore-output"]
predict(
    "12-state",
    "The highest order whose states are smaller than the keys and values of a million tokens?",
    ["2", "4", "6", "8"],
)


# %%
def gigabytes(numbers):
    """Of 90 key heads, in float32."""
    return 90 * 4 * numbers / 1e9


for T in (2048, 32768, 10**6):
    print(f"keys and values of {T:9,} tokens: {gigabytes(128 * T):8.3f} GB")
for order in (1, 2, 3, 4, 6, 8, 12):
    numbers = num_features(64, order) * 65
    size = f"{4 * numbers / 1e6:15,.2f} MB a head, {gigabytes(numbers):7.2g} GB in all"
    print(f"order {order:2}: {size}, as much as {numbers / 128:,.0f} tokens")
smaller = [n for n in (2, 4, 6, 8) if num_features(64, n) * 65 < 128 * 10**6]
reveal("12-state", str(smaller[-1]), "there are C(64 + N, N) rows: from order 2 to order 4 the "
       "state becomes 380 times as large, and from there to order 6 another 161 times.")

# %% [markdown]
# There is the dilemma. The orders that are as good as softmax have states that nobody can store: order 8 would pay after a text of some billions of tokens. Order 2, 0.56 MB a head, pays after about a thousand tokens, and ruins the model if it is in all heads. What remains is to use it in some heads, to train the model with it, or to make $d$ smaller, for the size falls with $d^N$.
#
# ## Type a prompt
#
# How does the model go on? Put your own words in, and other orders. Order 8 is computed from keys and values here; order 2 in a few layers runs from its state, at constant memory.

# %%
from softattn_lib.continuations import continuations

prompt = "The capital of France is"  # your own words here
choices = {f"order {fit.order}": fit for fit in fits}
for name, found in continuations(model, tokenizer, prompt, choices, tokens=16).items():
    print(f"{name:8} {found.text!r}")

# %%
by_layer = damage["2"].unflatten(0, (30, 9)).sum(1)  # the harm of a layer's heads
calm = by_layer.argsort()[:5].tolist()
print("five calm layers:", sorted(calm), f"with a damage of {by_layer[calm].sum():.3f} nats in all")
found_by = continuations(
    model, tokenizer, prompt, {"order 2": fits[0]}, layers=calm, tokens=16
)
for name, found in found_by.items():
    print(f"{name:8} {found.text!r}, {found.memory / 1e6:.1f} MB at the end")

# %% [markdown]
# The states of the five layers weigh more than all keys and values of this short text. After a million tokens they will weigh the same; the other 25 layers keep their keys and values here.
#
# ## A short adaptation
#
# So far nothing was trained: L-BFGS fitted each layer to what it receives *in the original model*. `softattn adapt` goes on from there. It trains the coefficients, a gate and a temperature for each head and the shift of the keys, layer by layer, to match the outputs of softmax. The weights of the model stay as they are.

# %%
for row in read_rows("../experiments/adapted.csv"):
    losses = (f"{name} {float(row[name]):.2f}" for name in ("softmax", "before", "after"))
    print(f"order {row['order']}, {row['steps']} steps, {row['text']:8}", *losses)

# %% [markdown]
# (Fewer tokens were judged here, so the losses of softmax are not those of above.) These are 60 steps of two sequences, some minutes on one core. It helps orders 2 and 4 a great deal and does not save them. At order 6 it is no longer sure to help: the held-out code gets a little worse.
#
# ## What others do instead
#
# Nobody has to stand in for exp in a finished model. Who trains a model from the start may choose a kernel whose state is small, and let the model get used to it:
#
# - **One even power.** [Power attention](https://arxiv.org/abs/2507.04239) takes $(q \cdot k)^n$ with $n$ even: never negative, one order only, packed features, and gates. [2Mamba](https://arxiv.org/abs/2602.17363), by the authors of our paper, takes $n = 2$ with a softmax-like denominator: with 2,080 features at $d = 64$ they report a test loss of 2.73 in a small model, where softmax has 2.73 and Mamba-2 2.88.
# - **Decay.** In 2Mamba old tokens fade: each weight is multiplied by $e^{A_t - A_s}$, with an $A$ that the model learns to lower. A state that forgets need not hold everything at once.
# - **A window plus a tail.** [Based](https://arxiv.org/abs/2402.18668) computes softmax exactly over the last 64 tokens, where sharp weights matter most, and leaves what is older to an order-2 Taylor state of width 16.
# - **Small scores.** [TaylorShift](https://arxiv.org/abs/2403.02920) divides queries and keys by their lengths, with a temperature that is learned, so that order 2 is not far from exp in the first place.
# - **Narrow heads.** [SATA](https://arxiv.org/abs/2602.00294) argues for many small heads, for which four orders are cheap. (No models were trained there.)
# - **Other features for the same room.** [An essay by A. Nejati](https://anj1.github.io/research/posts/fpattention), "Long Context Transformers with Finely Crafted State Spaces", sees Taylor's features as one choice among many polynomial features, and designs better ones for a given size of the state. We know its introduction only.
#
# Numbers in this list are those of the papers, not ours.
#
# ## What you saw
#
# - Taylor about 0 fails in a trained model because scores reach $-60$: low orders are cut too early, and high ones need more digits than float64 has. Other polynomials of the same order have the same recurrence and the same state.
# - The error that counts is that of a weight against its own row's sum. Minimax, best in absolute error, is among the worst here up to order 16; squares stay positive and pay with half of their freedom; sums of two squares lose no positive polynomial.
# - Without any training, order 8 in all heads is within 0.1 nats of softmax and order 12 within 0.02. Orders 2 and 4 are far off.
# - Some heads can do with order 2. The states of the orders that suffice for all are too large to store at $d = 64$.
#
# **Try it:**
#
# - In the widget, find a head where least squares beats the square at order 8. What do its scores look like? (5 minutes, easy)
# - Calibrate on your own text: `from softattn_lib.calibration import calibrate`, `calibrate(model, {"mine": sequences(tokenizer, text, 2)}, 4, "square")` with a `text` of at least 1,024 tokens, and `judge` on another. Is a text like the judged one better than ours? (10 minutes, medium)
# - Subtract the mean key first, as in [06](06_a_real_model.ipynb), and fit Taylor about the best centre to the centred scores of layer 18. Does the shift do what the second square does? (15 minutes, hard)

# %% [markdown]
# Back to [11 What it costs](11_what_it_costs.ipynb) · On to [13 Looking back](13_looking_back.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
