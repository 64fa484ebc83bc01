"""Backups of a training as folders: written atomically, and checked before they are read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Iterator

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.atomic import (
    Kind,
    checked_folder,
    remove_temporary,
    remove_written,
    replacing,
)
from encoder_zoo.presets.files.manifest import read_manifest, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.formats.preset_files import CONFIG, MANIFEST

logger = logging.getLogger("encoder_zoo")

STATE = "state.safetensors"
BACKUPS = "epoch-*-step-*"
KIND = Kind("a backup", lambda manifest: _is_of_training(manifest["training"]))


@dataclasses.dataclass(frozen=True)
class Position:
    """The epoch and step that a training has reached.

    Attributes:
        epoch: number of the epoch, from 0.
        step: how many steps of it are done.
        seed: of the order of the examples and of masking.
    """

    epoch: int
    step: int
    seed: int


class Backup:
    """A complete backup.

    Args:
        path: its folder.
        manifest: read from it, with the checksums verified.
    """

    def __init__(self, path: pathlib.Path, manifest: dict):
        self.path = path
        self._manifest = manifest
        training = manifest["training"]
        self.run: dict = training["run"]
        self.position = Position(**training["position"])
        self.window_sizes: list = training.get("window_sizes", [])

    @contextlib.contextmanager
    def arrays(self) -> Iterator[SafetensorsFile]:
        """Open the arrays, which must still be those of the manifest."""
        with OpenFolder(self.path, [MANIFEST, STATE]) as files:
            if read_manifest(files, verify=False) != self._manifest:
                raise ValueError(
                    f"{self.path} was replaced while the training was continued from it: "
                    "another run has the same backup_dir. Give each run a backup_dir of its own."
                )
            yield SafetensorsFile(files.file(STATE))

    def shapes(self, group: str) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of a group of variables."""
        with self.arrays() as file:
            shapes = file.shapes
        return {name: shape for name, shape in shapes.items() if name.startswith(f"{group}.")}

    def read(self, group: str) -> list[np.ndarray]:
        """Return a group of variables."""
        names = self.shapes(group)
        with self.arrays() as file:
            return [file.read(f"{group}.{i}") for i in range(len(names))]

    def restore(self, group: str, variables: list) -> None:
        """Assign a group of variables.

        Raises:
            ValueError: "The backup in ... belongs to another run: variable model.3 has the ..."
        """
        shapes = {f"{group}.{i}": tuple(v.shape) for i, v in enumerate(variables)}
        stored = self.shapes(group)
        for name in sorted({*shapes, *stored}):
            if shapes.get(name) != stored.get(name):
                raise self._other_run(
                    f"variable {name} has the shape {stored.get(name)} there, "
                    f"{shapes.get(name)} now"
                )
        with self.arrays() as file:
            for i, variable in enumerate(variables):
                variable.assign(file.read(f"{group}.{i}"))

    def check_same_run(self, run: dict) -> None:
        """Raise a ValueError that names what differs if the backup is of another run."""
        differing = [
            f"{name} is {shown(self.run.get(name))} there, {shown(run.get(name))} now"
            for name in dict.fromkeys([*self.run, *run])
            if self.run.get(name) != run.get(name)
        ]
        if differing:
            raise self._other_run("; ".join(differing[:5]))

    def _other_run(self, how: str) -> ValueError:
        return ValueError(
            f"The backup in {self.path.parent} belongs to another run: {how}. Give this run a "
            "backup_dir of its own, or delete that folder to train from the beginning."
        )


class BackupFolder:
    """The folder of a run's backups.

    Args:
        path: of the folder, which need not exist.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)

    def check(self) -> None:
        """Raise a ValueError if the folder holds something else, such as a preset."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"backup_dir={str(self.path)!r} is a file. Expected a folder.")
        checked_folder(self.path)
        for name in (MANIFEST, CONFIG):
            if (self.path / name).exists():
                raise ValueError(
                    f"backup_dir={str(self.path)!r} holds {name}: it is a preset, or a backup "
                    "by itself. Expected a folder for backups alone, or one where none is yet."
                )

    def newest(self) -> Backup | None:
        """Return the newest complete backup, or None if there is no backup.

        Raises:
            ValueError: "None of the 2 backups in ... is complete; ..."
        """
        folders = self._folders()
        for folder in reversed(folders):
            try:
                return Backup(folder, _checked_manifest(folder))
            except (OSError, ValueError) as error:
                logger.warning("A backup is skipped: %s.", str(error).partition(". ")[0])
        if folders:
            raise ValueError(
                f"None of the {len(folders)} backups in {self.path} is complete; the log says "
                "what is wrong with each. Delete the folder to train from the beginning."
            )
        return None

    def write(
        self, position: Position, arrays: dict[str, np.ndarray], task: str, run: dict, sizes: list
    ) -> pathlib.Path:
        """Write a backup atomically, and return its folder.

        Args:
            position: that training has reached.
            arrays: variables by group and number.
            task: name of the task.
            run: see `BackupAndRestore.begin`.
            sizes: the `window_sizes` of the data.
        """
        target = self.path / f"epoch-{position.epoch:06d}-step-{position.step:09d}"
        training = {"position": dataclasses.asdict(position), "run": run, "window_sizes": sizes}
        with replacing(target, KIND) as new:
            save_file(arrays, new / STATE)
            write_manifest(new, {"task": task, "training": training})
        return target

    def remove_all_but(self, *kept: pathlib.Path | None) -> None:
        """Remove backups, and the files of an interrupted write; files of the user stay."""
        for path in self._folders():
            if path not in kept:
                remove_written(path, KIND)
        remove_temporary(self.path, BACKUPS)

    def remove(self) -> None:
        """Remove all backups, and the folder if nothing else is in it."""
        self.remove_all_but()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _folders(self) -> list[pathlib.Path]:
        return sorted(path for path in self.path.glob(BACKUPS) if path.is_dir())


def _checked_manifest(folder: pathlib.Path) -> dict:
    """Return the manifest of a backup whose files have their checksums."""
    with OpenFolder(folder, [MANIFEST, STATE]) as files:
        manifest = read_manifest(files, verify=True)
    if STATE not in manifest.get("files", ()):
        raise ValueError(f"{folder} is not complete")
    if not _is_of_training(manifest.get("training")):
        raise ValueError(f"{folder} holds no backup of a training")
    return manifest


def _is_of_training(training: object) -> bool:
    """Return whether a manifest holds the position of a training, and its run."""
    if not isinstance(training, dict) or not isinstance(training.get("run"), dict):
        return False
    position, sizes = training.get("position"), training.get("window_sizes", [])
    names = {field.name for field in dataclasses.fields(Position)}
    if not isinstance(position, dict) or position.keys() != names or not isinstance(sizes, list):
        return False
    return all(type(number) is int and number >= 0 for number in position.values())


def flat_settings(settings: dict, prefix: str = "") -> dict:
    """Return nested settings as `{"outer.inner": value}`, without Keras's numbered names.

    Example:
        >>> flat_settings({"backbone": {"layers": 2, "name": "bert_3"}})
        {'backbone.layers': 2}
    """
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= flat_settings(value, f"{prefix}{name}.")
        elif name != "name":
            flat[prefix + name] = json.loads(json.dumps(value, default=lambda v: type(v).__name__))
    return flat
