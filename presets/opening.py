"""From a preset's name to a checkpoint that has been checked and can be loaded."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from encoder_zoo.presets.config import check_config, check_sizes
from encoder_zoo.presets.files.manifest import read_manifest
from encoder_zoo.presets.files.plain_files import check_files, read_json
from encoder_zoo.presets.formats import tf1
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.formats.huggingface import HuggingFaceCheckpoint
from encoder_zoo.presets.formats.kerashub import KerasHubCheckpoint
from encoder_zoo.presets.preset_files import preset_files
from encoder_zoo.presets.registry import resolve


@dataclasses.dataclass(frozen=True)
class Safeguards:
    """What is checked of a preset before it is loaded; every `from_preset` takes these.

    Attributes:
        verify: compare every file with its checksum, where the preset has one.
        max_bytes: the most that the weights may take in float32.
        allow_nonfinite: load weights that hold NaN or infinite values.
    """

    verify: bool = True
    max_bytes: int = 8 * 2**30
    allow_nonfinite: bool = False

    @classmethod
    def taken_from(cls, arguments: dict) -> Safeguards:
        """Takes the safeguards out of the arguments of a `from_preset`.

        Example:
            >>> arguments = {"verify": False, "dropout": 0.0}
            >>> Safeguards.taken_from(arguments).verify, arguments
            (False, {'dropout': 0.0})
        """
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: arguments.pop(name) for name in names if name in arguments})


def open_preset(source: str | os.PathLike, safeguards: Safeguards) -> Checkpoint:
    """Finds a preset, in whichever format it is, and checks it.

    Args:
        source: see `from_preset`.
        safeguards: how much to check.

    Returns:
        The checkpoint, none of whose weights has been read yet.

    Raises:
        ValueError: naming the file and the field that is wrong.
    """
    folder = resolve(source, safeguards.verify, safeguards.max_bytes)
    checkpoint = _open(folder, safeguards)
    config, family, path = checkpoint.config, checkpoint.family, checkpoint.config_file
    check_config(config, family, path, checkpoint.config_names)
    check_sizes(config, family, checkpoint.shapes, path, safeguards.max_bytes)
    return checkpoint


def _open(folder: pathlib.Path, safeguards: Safeguards) -> Checkpoint:
    """The checkpoint in a folder, read by what its format is."""
    settings = read_manifest(folder, safeguards.verify)
    check_files(folder, preset_files())
    if not (folder / "config.json").exists() and (family := tf1.family_in(folder)):
        return tf1.Tf1Checkpoint(folder, family)
    if "class_name" in read_json(folder / "config.json"):
        return KerasHubCheckpoint(folder, settings)
    return HuggingFaceCheckpoint(folder, settings)
