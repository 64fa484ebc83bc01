"""Create the tiny folders in `sentence_transformers/`, each with a different version.

Run `USE_TF=0 python make_sentence_transformers.py` with each version of sentence-transformers, and
a version of transformers from the same time. In addition to the files of the library,
`expected.npz` contains texts and their vectors, with and without a prompt.

The folders were created with 1.2.1 and 2.2.2 (transformers 4.36), 2.7.0 (4.41), 3.4.1 (4.48), 4.1.0
(4.51), 5.3.0, 5.4.1 and 5.7.0 (4.57), and 6.2.0 (5.23). The first two versions save dense layers as
`pytorch_model.bin`. Before 2.0, the encoder was in `0_Transformer`.
"""

import pathlib
import shutil
import tempfile

import numpy as np
import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer, models
from tiny_bert import TEXTS, remove_needless, write_bert

HERE = pathlib.Path(__file__).parent / "sentence_transformers"
PROMPT = "query : "
VERSION = tuple(int(part) for part in sentence_transformers.__version__.split(".")[:2])


def pooling(*names: str, **options) -> models.Pooling:
    """Create the pooling module. Before version 5.4, the modes are flags."""
    if VERSION >= (5, 4):
        return models.Pooling(8, names if len(names) > 1 else names[0], **options)
    flags = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    flags |= {"mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "lasttoken": "lasttoken"}
    flags |= {"weightedmean": "weightedmean_tokens"}
    chosen = {f"pooling_mode_{flags[n]}": True for n in names}
    return models.Pooling(8, **{"pooling_mode_mean_tokens": False, **chosen}, **options)


def modules() -> tuple[list[torch.nn.Module], dict]:
    """Return the modules of this version, and the arguments of the model."""
    nn, dense = torch.nn, models.Dense
    normalize = [models.Normalize()] if VERSION >= (2, 0) else []
    prompts = {"prompts": {"query": PROMPT, "passage": "a : "}}
    if VERSION == (1, 2):
        return [pooling("mean", "max"), dense(16, 5)], {}
    if VERSION == (2, 2):
        return [pooling("cls", "mean"), dense(16, 6), *normalize], {}
    if VERSION == (2, 7):
        default = {"default_prompt_name": "passage"}
        return [pooling("weightedmean", include_prompt=False), *normalize], {**prompts, **default}
    if VERSION == (3, 4):
        after = [pooling("max"), dense(8, 5, bias=False, activation_function=nn.GELU())]
        return after, {"similarity_fn_name": "dot"}
    if VERSION == (4, 1):
        after = [pooling("lasttoken"), dense(8, 4, activation_function=nn.Identity())]
        return after, {"similarity_fn_name": "euclidean"}
    if VERSION == (5, 3):
        return [pooling("mean_sqrt_len_tokens"), *normalize], prompts
    if VERSION == (5, 4):
        return [pooling("mean", "cls"), *normalize], {"truncate_dim": 6}
    if VERSION == (5, 7):
        after = [pooling("cls"), dense(8, 8, activation_function=nn.SiLU()), *normalize]
        return after, {**prompts, "default_prompt_name": "query"}
    if VERSION == (6, 2):
        first = dense(16, 8, activation_function=nn.ReLU(), use_residual=True)
        second = dense(8, 6, activation_function=nn.Sigmoid())
        third = dense(6, 6, use_residual=True)
        after = [pooling("mean", "lasttoken", include_prompt=False), first, second, third]
        return [*after, *normalize], {**prompts, "similarity_fn_name": "manhattan"}
    raise SystemExit(f"No modules for version {VERSION}.")


def main() -> None:
    folder = HERE / sentence_transformers.__version__
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as encoder:
        write_bert(pathlib.Path(encoder), sum(VERSION))
        transformer = models.Transformer(encoder, max_seq_length=16)
    after, arguments = modules()
    model = SentenceTransformer(modules=[transformer, *after], device="cpu", **arguments).eval()
    for parameter in [p for module in after for p in module.parameters()]:
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.save(str(folder))
    remove_needless(folder)
    vectors = model.encode(TEXTS, convert_to_numpy=True)
    prompted = model.encode(TEXTS, prompt=PROMPT) if VERSION >= (2, 4) else vectors
    np.savez_compressed(
        folder / "expected.npz", texts=np.array(TEXTS), vectors=vectors, prompted=prompted
    )


if __name__ == "__main__":
    main()
