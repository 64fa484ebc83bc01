"""Create the repositories recorded in `recorded/hub_listings.json`, with tiny weights."""

import json
import pathlib
import shutil

import numpy as np
import torch
from released_layouts import CONFIGS, released_tensors
from safetensors.torch import load_file, save_file

from encoder_zoo.encoders.tokenizers.gemma import GemmaTokenizer
from encoder_zoo.encoders.tokenizers.steps import BYTE_TOKENS

HERE = pathlib.Path(__file__).parent
RECORDED = json.loads((HERE / "recorded" / "hub_listings.json").read_text("utf-8"))
REPOSITORIES = RECORDED["repositories"]
_CHECKPOINTS = HERE / "golden" / "checkpoints"
_EMBEDDINGS = tuple(
    f"{name}.weight"
    for name in ("word_embeddings", "tok_embeddings", "embed_tokens", "word_embedding", "shared")
)
GLINERS = HERE / "golden" / "gliner"
ENCODER = "org/encoder"  # the encoder of the folders from `write_old_gliner`
_MODEL = ("config.json", "model.safetensors", "expected.npz")


def write_repositories(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """Write the recorded repositories. Repositories with the same layout and format share a folder.

    Args:
        folder: Path. Folder to write to.

    Returns:
        Dict {repository: list with a folder for each format of the weights}.
    """
    found = {}
    for repository in REPOSITORIES:
        found[repository["repository"]] = []
        for weights in repository["weights"]:
            dtype, model_type = repository.get("dtype", "float32"), repository.get("model_type")
            name = f"{repository['layout']}-{weights}-{dtype}-{model_type}"
            if not (folder / name).exists():
                _write(folder / name, repository, weights)
            found[repository["repository"]].append(folder / name)
    return found


def _write(folder: pathlib.Path, repository: dict, weights: str) -> None:
    layout = RECORDED["layouts"][repository["layout"]]
    if "gliner" in layout:
        _write_gliner(folder, folder.with_name(ENCODER.replace("/", "-")), layout)
        return
    base = _CHECKPOINTS / layout["checkpoint"]
    folder.mkdir()
    config = json.loads((base / "config.json").read_text("utf-8"))
    if released := layout.get("released"):
        config = {**CONFIGS[released], "vocab_size": config["vocab_size"]}
    config |= layout.get("config", {})
    if model_type := repository.get("model_type"):
        config["model_type"] = model_type
    tensors = _tensors(layout, load_file(base / "model.safetensors"), repository.get("dtype"))
    _write_tokenizer(folder, layout)
    if "tokenizer_of" in layout:
        other = json.loads((_CHECKPOINTS / layout["tokenizer_of"] / "config.json").read_text())
        config["vocab_size"] = other["vocab_size"]
    for name in layout.get("without_config", ()):
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in layout.get("files", {}).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, "utf-8")
    for name in layout.get("without", ()):
        (folder / name).unlink(missing_ok=True)
    if weights == "safetensors":
        save_file({name: t.clone().contiguous() for name, t in tensors.items()}, folder / _MODEL[1])
    else:
        is_zip = weights == "zip"
        torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)


def write_old_gliner(folder: pathlib.Path, encoder: pathlib.Path, kind: str) -> None:
    """Write a folder like gliner before 0.2.7, without the encoder's configuration and tokenizer.

    Args:
        folder: Path. Folder to write.
        encoder: Path. Folder of the repository `ENCODER`, which contains these files.
        kind: String. Name of a folder in `GLINERS`.
    """
    source = GLINERS / kind
    config = json.loads((source / "gliner_config.json").read_text("utf-8"))
    own = config.pop("encoder_config")
    tokens = own["vocab_size"] - 3  # gliner adds three
    encoder.mkdir(exist_ok=True)
    (encoder / "config.json").write_text(json.dumps({**own, "vocab_size": tokens}))
    tokenizer = json.loads((source / "tokenizer.json").read_text("utf-8"))
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["id"] < tokens]
    (encoder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(source / "tokenizer_config.json", encoder)
    del config["class_token_index"], config["vocab_size"]
    folder.mkdir(exist_ok=True)
    (folder / "gliner_config.json").write_text(json.dumps({**config, "model_name": ENCODER}))
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (source / name).exists():
            shutil.copy(source / name, folder)


def _write_gliner(folder: pathlib.Path, encoder: pathlib.Path, layout: dict) -> None:
    """Write an old gliner folder. Its encoder has another tokenizer and a larger vocabulary."""
    write_old_gliner(folder, encoder, layout["gliner"])
    (encoder / "tokenizer.json").unlink()
    shutil.copy(_CHECKPOINTS / layout["tokenizer_of"] / "spm.model", encoder)
    weights = folder / "pytorch_model.bin"
    tensors = torch.load(weights)
    embedding = next(n for n in tensors if n.endswith(_EMBEDDINGS))
    other = json.loads((_CHECKPOINTS / layout["tokenizer_of"] / "config.json").read_text())
    config = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(config | {"vocab_size": other["vocab_size"]}))
    rows = other["vocab_size"] + 3  # gliner adds three tokens
    tensors[embedding] = torch.zeros(rows, tensors[embedding].shape[1])
    torch.save(tensors, weights)


def _write_tokenizer(folder: pathlib.Path, layout: dict) -> None:
    if layout.get("gemma"):
        tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *BYTE_TOKENS, "▁", "a", "b", "ab"]
        for name, text in GemmaTokenizer(tokens, ["a b"], byte_fallback=True).to_files().items():
            (folder / name).write_text(text, "utf-8")
        return
    base = _CHECKPOINTS / layout.get("tokenizer_of", layout["checkpoint"])
    for path in base.iterdir():
        if path.name not in _MODEL:
            shutil.copy(path, folder)


def _tensors(layout: dict, tensors: dict, dtype: str | None) -> dict:
    """Convert the tensors of a checkpoint to the names and dtypes of a layout."""
    if released := layout.get("released"):
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        arrays = released_tensors(released, arrays)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    tensors = {layout.get("prefix", "") + name: tensor for name, tensor in tensors.items()}
    embedding = next(n for n in tensors if n.endswith(_EMBEDDINGS))
    if "tokenizer_of" in layout:
        other = json.loads((_CHECKPOINTS / layout["tokenizer_of"] / "config.json").read_text())
        rows, old = other["vocab_size"], len(tensors[embedding])
        for name, tensor in tensors.items():
            if len(tensor) == old:
                tensors[name] = torch.zeros(rows, *tensor.shape[1:])
    for name, shape in layout.get("extra", {}).items():
        if shape == "tied":
            tensors[name] = tensors[embedding]
        elif shape == "positions":
            tensors[name] = torch.arange(32)[None]
        else:
            tensors[name] = torch.from_numpy(np.full(shape, 0.5, "float32"))
    if layout.get("old_norms"):
        old = {"weight": "gamma", "bias": "beta"}
        tensors = {
            f"{name.rsplit('.', 1)[0]}.{old[name.rsplit('.', 1)[1]]}"
            if "LayerNorm." in name
            else name: t
            for name, t in tensors.items()
        }
    if dtype in ("float16", "mixed"):
        halves = [n for i, n in enumerate(tensors) if dtype == "float16" or i % 2]
        tensors |= {n: tensors[n].half() for n in halves if tensors[n].is_floating_point()}
    return tensors
