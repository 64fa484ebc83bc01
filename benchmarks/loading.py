"""Measure time and peak memory for loading preset weights from each format.

    python benchmarks/loading.py
    python benchmarks/loading.py --rounds 5 --layers 24 --width 1024

A BERT model with random weights (438 MB for BERT-base) is saved as safetensors and in both
torch.save formats. Each load runs in a separate process, and formats run in turns. transformers
loads the same files on PyTorch. Times in seconds only include loading, without imports. Memory is
how much peak memory increases while loading, as reported by Linux. Results are medians. Ratios are
relative to safetensors on the same side. This script requires the extra `peers`.
"""

import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FORMATS = ("safetensors", "PyTorch", "PyTorch legacy")
IMPORTS = {
    "encoder_zoo": "import encoder_zoo as ez; load = ez.Backbone.from_preset; load(sys.argv[2])",
    "transformers": "import transformers; load = transformers.AutoModel.from_pretrained",
}
# Loads a folder. Prints seconds and the increase in peak memory in bytes.
PROGRAM = """
import json, re, sys, time
{imports}
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
before = peak()
start = time.perf_counter()
model = load(sys.argv[1])
print(json.dumps([time.perf_counter() - start, peak() - before]))
"""


def write_folders(root: pathlib.Path, layers: int, width: int) -> dict[str, pathlib.Path]:
    """Write a model in each format, together with a small model. Return a dict {format: folder}."""
    import shutil

    import torch
    from safetensors.torch import load_file

    import encoder_zoo as ez

    tokenizer = ez.BertTokenizer.from_preset("bert_nano_en_uncased")
    sizes = {"num_heads": width // 64, "hidden_dim": width, "intermediate_dim": 4 * width}
    backbone = ez.BertBackbone(tokenizer.vocabulary_size, num_layers=1, **sizes)
    backbone.save_to_preset(root / "small", tokenizer=tokenizer)
    folders = {format: root / format for format in FORMATS}
    first = folders["safetensors"]
    ez.BertBackbone(30_522, num_layers=layers, **sizes).save_to_preset(first)
    tensors = load_file(first / "model.safetensors")
    for format in FORMATS[1:]:
        folders[format].mkdir()
        shutil.copy(first / "config.json", folders[format])
        zipped = format == "PyTorch"
        path = folders[format] / "pytorch_model.bin"
        torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
    return folders


def measure(side: str, folder: pathlib.Path) -> tuple[float, float]:
    """Load a folder in a new process. Return seconds and the memory increase in bytes."""
    program = PROGRAM.format(imports=IMPORTS[side])
    command = [sys.executable, "-c", program, str(folder), str(folder.parent / "small")]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return tuple(json.loads(result.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    arguments = parser.parse_args()
    found = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as root:
        folders = write_folders(pathlib.Path(root), arguments.layers, arguments.width)
        size = (folders["safetensors"] / "model.safetensors").stat().st_size
        for _ in range(arguments.rounds):
            for side in IMPORTS:
                for format, folder in folders.items():
                    found[side, format].append(measure(side, folder))
    print(f"{size / 1e6:.0f} MB of weights, {arguments.rounds} rounds")
    for (side, format), figures in found.items():
        seconds, growth = (statistics.median(values) for values in zip(*figures, strict=True))
        first, least = (
            statistics.median(values) for values in zip(*found[side, "safetensors"], strict=True)
        )
        print(
            f"{side:13}{format:16}{seconds:6.2f} s ({seconds / first:.2f})"
            f"{growth / 1e6:8.0f} MB ({growth / least:.2f}; {growth / size:.2f} times the file)"
        )


if __name__ == "__main__":
    main()
