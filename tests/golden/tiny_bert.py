"""Write a tiny BERT with transformers, for the scripts that create folders of other libraries."""

import json
import pathlib

import torch
import transformers

WORDS = (
    "the a cat dog mat sat ran on under good bad film was is it not very query : . , ! ##s ##ing"
)
TEXTS = [
    "the cat sat on the mat .",
    "Good film !",
    "it was not very good , it was bad",
    "dogs",
    "the dog ran under the mat , the cat ran , the dog sat , it was bad . " * 2,
]


def write_bert(
    folder: pathlib.Path,
    seed: int,
    markers: tuple[str, ...] = (),
    words: str = WORDS,
    masked_lm: bool = False,
) -> list[str]:
    """Write an encoder with 8 dimensions or a masked language model, and return its tokens."""
    tokens = ["[PAD]", *markers, "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split(" ")]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", "utf-8")
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "model_max_length": 24}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(tokens),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    if masked_lm:
        model = transformers.BertForMaskedLM(config).eval()
    else:
        model = transformers.BertModel(config, add_pooling_layer=False).eval()
    for parameter in model.parameters():  # biases and LayerNorm away from 0 and 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return tokens


def remove_needless(folder: pathlib.Path) -> None:
    """Remove the model card, and module folders without files."""
    (folder / "README.md").unlink(missing_ok=True)
    for path in folder.glob("*_*"):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
