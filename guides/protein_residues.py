# %% [markdown]
"""
Title: Proteins
Author: the authors of encoder_zoo
Date created: 2026/11/29
Last modified: 2026/11/29
Description: Label residues, compute vectors and score mutations with a small ESM-2.
Accelerator: None

ESM-2 is an encoder for protein sequences. Each residue is a token, so `TokenClassifier` predicts a
label for each residue. Published checkpoints can be loaded with
`from_preset("hf://facebook/esm2_t6_8M_UR50D")`.

Nothing has to be downloaded for this guide. The sequences are random, and a small model is trained
from scratch. Each sequence contains stretches of hydrophobic residues, like the helices that cross
a cell membrane.
"""

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import numpy as np

import encoder_zoo as ez

keras.utils.set_random_seed(0)

# %% [markdown]
"""
## The data

A stretch has 12 to 20 residues. Three of four are hydrophobic. Outside of stretches, one of five is
hydrophobic, so a single residue does not determine its label.
"""

# %%
HYDROPHOBIC, OTHER = list("AILMFVWG"), list("RNDCQEHKPSTY")
rng = np.random.default_rng(0)


def draw(length: int, share: float) -> str:
    """Draw residues, a fraction of which is hydrophobic."""
    kinds = rng.random(length) < share
    return "".join(rng.choice(HYDROPHOBIC if kind else OTHER) for kind in kinds)


def make_protein() -> tuple[str, list[dict]]:
    """Return a sequence and its stretches as character spans."""
    sequence, spans = "M", []
    for _ in range(rng.integers(1, 4)):
        sequence += draw(rng.integers(8, 20), 0.2)
        stretch = draw(rng.integers(12, 21), 0.75)
        spans.append({"start": len(sequence), "end": len(sequence + stretch), "label": "membrane"})
        sequence += stretch
    return sequence + draw(rng.integers(8, 20), 0.2), spans


sequences, stretches = zip(*(make_protein() for _ in range(700)), strict=True)
print(sequences[0])
print([sequences[0][span["start"] : span["end"]] for span in stretches[0]])

# %% [markdown]
"""
## Labels for residues

`EsmTokenizer` has the vocabulary of ESM-2. `fit` takes sequences and spans. The first 200 sequences
are held out.
"""

# %%
letters = [*"LAGVSERTIDPKQNFYMHWCXBUZO.-"]
tokenizer = ez.EsmTokenizer(["<cls>", "<pad>", "<eos>", "<unk>", *letters, "<null_1>", "<mask>"])
backbone = ez.EsmBackbone(
    vocabulary_size=tokenizer.vocabulary_size,
    num_layers=2,
    num_heads=4,
    hidden_dim=64,
    intermediate_dim=128,
    mask_token_id=tokenizer.mask_token_id,
    pooler=False,
)
tagger = ez.TokenClassifier(backbone, ez.TokenClassifierPreprocessor(tokenizer))
tagger.compile(learning_rate=3e-3)
history = tagger.fit(
    list(sequences[200:]), list(stretches[200:]), epochs=6, batch_size=32, verbose=2
)
protein = sequences[0]
for entity in tagger.extract_entities(protein):
    print(entity)

# %% [markdown]
"""
The ends of a random stretch cannot be predicted exactly, so we count single residues.
"""

# %%
right = total = 0
for sequence, spans, found in zip(
    sequences[:200], stretches[:200], tagger.extract_entities(list(sequences[:200])), strict=True
):
    inside = np.zeros((2, len(sequence)), bool)
    for row, entities in enumerate((spans, found)):
        for entity in entities:
            inside[row, entity["start"] : entity["end"]] = True
    right, total = right + (inside[0] == inside[1]).sum(), total + len(sequence)
print(f"Residues with the right label: {right / total:.0%}")

# %% [markdown]
"""
## Mutations

`MaskedLM` predicts masked residues from the residues around them. Here, it starts with the trained
backbone, which already finds stretches.
"""

# %%
language_model = ez.MaskedLM(backbone, ez.MaskedLMPreprocessor(tokenizer))
language_model.compile(learning_rate=3e-3)
history = language_model.fit(list(sequences[200:]), epochs=6, batch_size=32, verbose=2)

# %% [markdown]
"""
The score of a mutation is the logarithm of its probability, relative to the original residue, if
the residue is masked. In a stretch, a charged residue should be less likely than a hydrophobic one.
"""

# %%
stretch = stretches[0][0]
middle = next(i for i in range(stretch["start"] + 5, stretch["end"]) if protein[i] in HYDROPHOBIC)
masked = f"{protein[:middle]}<mask>{protein[middle + 1 :]}"
answers = language_model.fill_mask(masked, targets=sorted({protein[middle], *"VLDK"}))
scores = {answer["token"]: np.log(answer["score"]) for answer in answers}
for residue, score in scores.items():
    print(f"{protein[middle]}{middle + 1}{residue}: {score - scores[protein[middle]]:+.2f}")

# %% [markdown]
"""
## Vectors

`TextEmbedder` computes a vector for each protein, the mean over its residues. They can be searched
like the vectors of texts.
"""

# %%
embedder = ez.TextEmbedder(backbone, ez.TextEmbedderPreprocessor(tokenizer))
index = embedder.index(list(sequences[200:]))
for hit in index.search(protein, top_k=2):
    print(f"{hit['score']:.3f}", hit["text"][:40])
