# %% [markdown]
# # In which encoder do intents hold together better, and how surely?
#
# 1,000 utterances of 20 CLINC150 intents, 50 each, under two encoders. An intent lies within one domain
# (banking, travel, ...), so labels are exchanged within domains: otherwise a domain effect would pass
# for an intent effect.

# %%
import json
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parent / "clinc_intents"


def assay(*words: str) -> dict:
    """A report of the command line, computed in this process' own machine."""
    command = [sys.executable, "-m", "assay_client.cli", *words, "--local", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


report = assay(
    "check", "group_structure",
    "--models", f"minilm={DATA / 'minilm.npy'}",
    "--models", f"e5={DATA / 'e5small_q4.npy'}",
    "--groups", f"{DATA / 'rows.csv'}:intent",
    "--strata", f"{DATA / 'rows.csv'}:domain",
)  # fmt: skip
models = report["results"]["models"]

# %% [markdown]
# ## Each model by itself
#
# R2 is the share of the variation that lies between intents. Its floor is not 0 and, with domains as
# strata, not (G-1)/(n-1) either: `r2_expected` is what the same permutations give on average.

# %%
for name, model in models.items():
    r2 = model["r2"]
    low, high = r2["interval"]["low"], r2["interval"]["high"]
    print(
        f"{name:7} R2 {r2['estimate']:.4f} [{low:.4f}, {high:.4f}], expected without intents "
        f"{model['r2_expected']:.4f}, p {model['p']['estimate']:.4f}"
    )

# %% [markdown]
# ## The difference
#
# Both intervals above are wide because intents differ. The models see the same intents, so the paired
# difference, with the same intents left out of both, is the question to ask. V is not comparable: e5
# rows lie close together whatever they mean.

# %%
pair = report["results"]["differences"]["e5"]["minilm"]
r2, test = pair["r2"], pair["r2_test"]
print(
    f"e5 - minilm: R2 {r2['estimate']:+.4f} [{r2['interval']['low']:+.4f}, "
    f"{r2['interval']['high']:+.4f}], p {test['p']:.4f}"
)
print(f"e5 - minilm: V {pair['v']['estimate']:+.4f} (depends on scale: {pair['scale_dependent']})")

# %% [markdown]
# ## Spread
#
# Intents differ in spread in both models; with 50 rows each F is safe, with unequal sizes read F2.

# %%
for name, model in models.items():
    spread = model["dispersion"]
    loosest = model["groups"][0]
    print(
        f"{name:7} dispersion F {spread['f']:.2f}, p {spread['p']['estimate']:.4f}; loosest intent "
        f"{loosest['label']} with {loosest['w_tilde']:.3f}"
    )
