"""Measure training and forward passes on an accelerator for JAX, PyTorch and transformers.

    python benchmarks/accelerator.py                       # at most nine minutes; again: the rest
    python benchmarks/accelerator.py --models BERT-base --lengths 512 --json results.json
    python benchmarks/accelerator.py --tiny --json tiny.json     # the kit itself, on any machine

Model sizes match BERT-base, ModernBERT-base and DeBERTa-v3-base. All models use random weights and
two classes. Weights use float32 and computations use bfloat16, without dropout. Each batch has
16,384 tokens without padding. A training step includes the forward pass, backward pass, gradient
clipping and AdamW. transformers uses autocast, `torch.compile`, and `sdpa` attention if the model
supports it. To compute the share of the peak, only matrix products in the model are counted.
Training counts three times as many products. On JAX, peak memory will include all earlier
measurements in the same process. Lengths are measured in the given order, and forward passes come
before training.

In addition to this package, use `pip install -U "jax[cuda12]"` to measure JAX, `pip install torch`
to measure PyTorch, and `pip install torch transformers` to measure transformers. If pip cannot find
compatible versions, create two environments and run each of them with its `--sides`, using the same
file. This script does not download anything and does not import TensorFlow.

Most of the time is spent on compilation. JAX and PyTorch keep compiled programs on disk. Results
that are already in the file will not be measured again. This allows a second run to measure only
missing and failed results. Results for other devices or options will be kept in the file but not
shown. To measure everything again, remove the file.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
SIDES = {"encoder_zoo on JAX": "jax", "encoder_zoo on torch": "torch", "transformers": "torch"}
MODELS = {  # layers, width, inner width and vocabulary size (each head has 64 dimensions)
    "BERT-base": (12, 768, 3072, 30522),
    "ModernBERT-base": (22, 768, 1152, 50368),
    "DeBERTa-v3-base": (12, 768, 3072, 128100),
}
LONGEST = {"BERT-base": 512}  # maximum number of tokens, if limited
LENGTHS = (512, 128, 8192)
BATCH_TOKENS = 16384
MINUTES = 9
# Dense bfloat16 products per second (10^12) from vendor data sheets, by words in the device name.
PEAKS = {
    "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200": 989, "GH200": 989, "B200": 2250,
    "A100": 312, "L40S": 362, "L40": 181, "L4": 121,
    "TPU v4": 275, "TPU v5 lite": 197, "TPU v5": 459, "TPU v6 lite": 918,
}  # fmt: skip


def operations(model: str, length: int, tiny: bool) -> float:
    """Return floating-point operations per token in a forward pass, two for each product."""
    layers, width, inner, _ = sizes(model, tiny)
    gated = model == "ModernBERT-base"
    dense = 4 * width**2 + (3 if gated else 2) * width * inner
    reached = length
    if gated:  # except for every third layer, attention is limited to 128 tokens
        everywhere = -(-layers // 3) / layers
        reached = everywhere * length + (1 - everywhere) * min(length, 129)
    pairs = 2 * width * reached  # attention scores, and weighted means of values
    if model == "DeBERTa-v3-base":  # scores of 512 relative distances, for queries and for keys
        pairs += 2 * width * min(2 * length, 512)
    return 2.0 * layers * (dense + pairs)


def sizes(model: str, tiny: bool) -> tuple[int, int, int, int]:
    """Return layers, width, inner width and vocabulary size."""
    return (2, 64, 96, 300) if tiny else MODELS[model]


def measure(side: str, model: str, lengths: list[int], options, seconds: float) -> list[dict]:
    """Measure one model with one library in a separate process. Failed rows contain the error."""
    work = {"side": side, "model": model, "sizes": sizes(model, options.tiny), "lengths": lengths}
    work |= {"tokens": options.tokens, "seconds": options.seconds}
    try:
        done = run_side(work, SIDES[side], seconds)
        if done.returncode:
            print(f"{side}: {done.stderr.strip()[-200:]}", file=sys.stderr)
        output, why = done.stdout, (done.stderr.strip().split("\n") or [""])[-1]
    except subprocess.TimeoutExpired as error:
        output, why = (error.stdout or b"").decode(), f"stopped after {seconds:.0f} s: run again"
    rows = [json.loads(line) for line in output.split("\n") if line.startswith('{"side"')]
    rows = [{**row, **settings(options)} for row in rows]
    found = {(row["length"], row["work"]) for row in rows}
    asked = make_rows(side, model, lengths)
    missing = [row for row in asked if (row["length"], row["work"]) not in found]
    return rows + [{**row, "missing": why[:120] or "no result"} for row in missing]


def run_side(work: dict, backend: str, seconds: float) -> subprocess.CompletedProcess:
    """Run `accelerator_sides.py` in a separate process until it ends."""
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, str(HERE / "accelerator_sides.py"), json.dumps(work)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)


def find_devices(sides: list[str]) -> dict[str, str]:
    """Return a dict {library: device name} without libraries that fail to start."""
    found = {}
    for backend in sorted({SIDES[side] for side in sides}):
        try:
            done = run_side({"device_of": backend}, backend, 120)
        except subprocess.TimeoutExpired:
            continue
        if not done.returncode:
            found[backend] = json.loads(done.stdout.split("\n")[-2])["device"]
    return {side: found[SIDES[side]] for side in sides if SIDES[side] in found}


def make_rows(side: str, model: str, lengths: list[int]) -> list[dict]:
    """Create the table rows to measure, without results."""
    return [
        {"side": side, "model": model, "length": length, "work": kind}
        for length in lengths
        for kind in ("forward", "train")
    ]


def settings(options: argparse.Namespace) -> dict:
    """Return all options that affect results."""
    return {"tokens": options.tokens, "seconds": options.seconds, "tiny": options.tiny}


IDENTITY = ("side", "model", "length", "work", "tokens", "seconds", "tiny", "device")


def identity(row: dict) -> tuple:
    """Return the values in a row that identify what was measured."""
    return tuple(row.get(name) for name in IDENTITY)


def select_results(
    rows: list[dict], options: argparse.Namespace, devices: dict[str, str]
) -> list[dict]:
    """Return the successful results for these devices and options."""
    own = settings(options)
    return [
        row
        for row in rows
        if "error" not in row
        and row.get("device") in devices.values()
        and {name: row.get(name) for name in own} == own
    ]


def unmeasured(
    options: argparse.Namespace, found: set[tuple], devices: dict[str, str]
) -> list[tuple]:
    """Return the requested libraries, models and lengths that have no result on these devices."""
    works = []
    for model in options.models:
        lengths = [n for n in options.lengths if n <= LONGEST.get(model, n)]
        for side in options.sides:
            own = {**settings(options), "device": devices.get(side)}
            rows = [{**row, **own} for row in make_rows(side, model, lengths)]
            rows = [row for row in rows if identity(row) not in found]
            left = list(dict.fromkeys(row["length"] for row in rows))
            works += [(side, model, left)] if left else []
    return works


def get_peak(device: str) -> float | None:
    """Return the peak for this device in 10^12 operations per second, or None if unknown."""
    return next((p for name, p in PEAKS.items() if re.search(rf"\b{name}\b", device)), None)


def add_share(row: dict, options: argparse.Namespace) -> dict:
    """Add the share of the device's peak to a result."""
    peak = options.peak or get_peak(row.get("device", ""))
    if peak and "tokens_per_second" in row:
        each = operations(row["model"], row["length"], options.tiny)
        each *= 3 if row["work"] == "train" else 1
        row["share_of_peak"] = each * row["tokens_per_second"] / (peak * 1e12)
    return row


def print_row(row: dict) -> None:
    """Print a table row."""
    cells = [row["model"], row["length"], row["work"], row["side"]]
    if "tokens_per_second" not in row:
        why = row.get("error") or row["missing"]
        print("|", " | ".join(map(str, cells)), "|", why, "| | | |", flush=True)
        return
    share = f"{row['share_of_peak']:.0%}" if "share_of_peak" in row else ""
    cells += [f"{row['tokens_per_second']:,.0f}", share, f"{row['peak_mb']:,.0f}"]
    print("|", " | ".join(map(str, cells)), "|", f"{row['first_seconds']:.1f} |", flush=True)


def parse_options() -> argparse.Namespace:
    """Parse command line options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--tokens", type=int, default=BATCH_TOKENS, help="tokens per batch")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement")
    parser.add_argument("--peak", type=float, help="device peak in 10^12 operations per second")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("accelerator.json"))
    parser.add_argument("--tiny", action="store_true", help="small models and batches")
    options = parser.parse_args()
    if options.tiny:
        options.lengths, options.tokens, options.seconds = (16, 32), 64, 0.05
    return options


def write(path: pathlib.Path, stored: dict[tuple, dict]) -> None:
    """Write the results to a JSON file."""
    text = json.dumps(list(stored.values()), indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    options = parse_options()
    end = time.monotonic() + 60 * MINUTES
    rows = json.loads(options.json.read_text()) if options.json.exists() else []
    stored = {identity(row): row for row in rows}
    devices = find_devices(options.sides) if rows else {}
    print("| model | tokens | work | side | tokens/s | of peak | peak MB | first step, s |")
    print("|---" * 8 + "|")
    found = {
        identity(row): add_share(row, options) for row in select_results(rows, options, devices)
    }
    for row in found.values():
        print_row(row)
    write(options.json, stored | found)  # also updates shares when --peak has changed
    works = unmeasured(options, set(found), devices)
    for i, (side, model, lengths) in enumerate(works):
        share = len(lengths) / sum(len(each) for *_, each in works[i:])  # of the remaining seconds
        seconds = share * (end - time.monotonic())
        for row in measure(side, model, lengths, options, max(seconds, 1.0)):
            if identity(row) in found:
                continue
            print_row(add_share(row, options))
            if "missing" not in row:
                stored[identity(row)] = row
                devices[side] = row["device"]
        write(options.json, stored)
    print("\nDevices:", ", ".join(sorted(set(devices.values()))))


if __name__ == "__main__":
    main()
