"""Parse the central directory in uncompressed zip files.

Programs can disagree about the entries in malformed zip files. For this reason, ambiguous files
are rejected. Names must be unique. The entries must start at the first byte, be in order, and not
overlap. The directory must come after the entries and end at the end of the file.

Source: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from encoder_zoo.common.wording import quote
from encoder_zoo.presets.files.file_bytes import FileBytes
from encoder_zoo.presets.files.folder_files import is_plain

_MAX_DIRECTORY_BYTES = 8 * 2**20  # the directory of 10,000 tensors has 600 kB
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_SIZES_FOLLOW, _UTF8, _ENCRYPTED = 0x8, 0x800, 0x1
_IN_EXTRA = 0xFFFFFFFF
_ADVICE = "Download the file again"


class ZipEntry(NamedTuple):
    """Entry in the zip directory.

    Attributes:
        name: String. The path of the entry in the archive.
        flags: Integer. General purpose bit flags.
        header: Integer. Offset of the local header in bytes.
        size: Integer. Content size in bytes.
    """

    name: str
    flags: int
    header: int
    size: int


class ZipDirectory:
    """Find and validate all entries in a zip file.

    Args:
        source: The `FileBytes` to read from.

    Attributes:
        entries: Dictionary that maps names to `ZipEntry` objects.

    Raises:
        ValueError: If the directory is damaged, or if entries are compressed or encrypted.

    Example:
        >>> import io, zipfile
        >>> file = io.BytesIO()
        >>> file.name = "some.zip"
        >>> with zipfile.ZipFile(file, "w") as archive:
        ...     archive.writestr("folder/letters", b"abc")
        >>> source = FileBytes(file)
        >>> directory = ZipDirectory(source)
        >>> directory.entries["folder/letters"].size
        3
        >>> source.read(directory.find_content_start("folder/letters"), 3)
        b'abc'
    """

    def __init__(self, source: FileBytes):
        self._source = source
        count, size, self._start = self._read_end()
        if size > _MAX_DIRECTORY_BYTES:
            raise self._make_error(
                f"the zip directory has {size} bytes, but the limit is {_MAX_DIRECTORY_BYTES}"
            )
        entries = self._read_entries(source.read(self._start, size), count)
        self.entries: dict[str, ZipEntry] = {}
        spelled: dict[str, str] = {}  # PyTorch ignores the case of names
        for entry in entries:
            if entry.name in self.entries:
                raise self._make_error(f"the zip entry {quote(entry.name)} occurs twice")
            first = spelled.setdefault(entry.name.lower(), entry.name)
            if first != entry.name:
                raise self._make_error(
                    f"the zip entries {quote(first)} and {quote(entry.name)} only differ in case"
                )
            self.entries[entry.name] = entry
        self._check_layout()

    def find_content_start(self, name: str) -> int:
        """Validate the entry header, and return the content offset.

        Raises:
            ValueError: If the header does not match the entry in the directory.
        """
        entry = self.entries[name]
        header = self._source.read(entry.header, _LOCAL_HEADER.size)
        signature, _, flags, method, *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
        start = entry.header + _LOCAL_HEADER.size + name_size + extra_size
        if (
            signature != b"PK\3\4"
            or (flags, method) != (entry.flags, 0)
            or self._source.read(entry.header + _LOCAL_HEADER.size, name_size) != name.encode()
            or start + entry.size > self._ends[name]
        ):
            raise self._make_error(
                f"the header of the zip entry {quote(name)} differs from its entry in the zip "
                "directory"
            )
        return start

    def _make_error(self, what: str) -> ValueError:
        return self._source.make_error(what, _ADVICE)

    def _read_end(self) -> tuple[int, int, int]:
        """Return the number of entries, the directory size in bytes, and the directory offset."""
        source = self._source
        end = source.size - _END.size
        tail = source.read(end, _END.size) if end >= 0 else bytes(_END.size)
        signature, disk, first, here, entries, size, start, comment = _END.unpack(tail)
        if (signature, comment) != (b"PK\5\6", 0):
            raise self._make_error(
                "the file does not end with a zip directory, so it is truncated or has extra data"
            )
        found: tuple[int, ...] = disk, first, here, entries, size, start
        if end >= _END64.size + _LOCATOR.size:
            end64 = end - _END64.size - _LOCATOR.size
            tail = source.read(end64, _END64.size + _LOCATOR.size)
            if tail[_END64.size :].startswith(b"PK\6\7"):
                large = self._read_end64(tail, end64)
                limits = [0xFFFF] * 4 + [_IN_EXTRA] * 2
                if found != tuple(map(min, large, limits)):
                    raise self._make_error("the end records of the zip directory differ")
                found, end = large, end64
        disk, first, here, entries, size, start = found
        if (disk, first, here) != (0, 0, entries) or start + size != end:
            raise self._make_error("the zip directory does not end at the end of the file")
        return entries, size, start

    def _read_end64(self, tail: bytes, end64: int) -> tuple[int, ...]:
        """Parse the 64-bit end record, which replaces the fields of the 32-bit end record."""
        signature, size, _, _, *fields = _END64.unpack_from(tail)
        located = _LOCATOR.unpack_from(tail, _END64.size)
        expected = b"PK\6\6", _END64.size - 12, b"PK\6\7", 0, end64, 1
        if (signature, size, *located) != expected:
            raise self._make_error("the end record of the zip directory is damaged")
        return tuple(fields)

    def _read_entries(self, content: bytes, count: int) -> list[ZipEntry]:
        entries = []
        start = 0
        while start < len(content):
            if len(content) - start < _CENTRAL.size or content[start : start + 4] != b"PK\1\2":
                raise self._make_error("the zip directory is damaged")
            fields = _CENTRAL.unpack_from(content, start)
            name_start = start + _CENTRAL.size
            extra_start, comment_start, start = (
                name_start + sum(fields[10 : 11 + i]) for i in range(3)
            )
            name, extra = content[name_start:extra_start], content[extra_start:comment_start]
            entries.append(self._read_entry(fields, name, extra))
        if start != len(content) or len(entries) != count:
            raise self._make_error("the zip directory is damaged")
        return entries

    def _read_entry(self, fields: tuple, name: bytes, extra: bytes) -> ZipEntry:
        text = name.decode("utf-8", "backslashreplace")
        _, _, _, flags, method, _, _, _, packed, size, _, _, _, disk, _, _, header = fields
        if flags & _ENCRYPTED:
            raise self._source.make_error(
                f"the zip entry {quote(text)} is encrypted", "Save the file without encryption"
            )
        if method != 0 or flags & ~(_SIZES_FOLLOW | _UTF8):
            raise self._source.make_error(
                f"the zip entry {quote(text)} is compressed, but only uncompressed entries are "
                "supported",
                "Save the file without compression",
            )
        if not all(map(is_plain, text.split("/"))):
            raise self._make_error(f"the zip entry {quote(text)} is not a plain name in a folder")
        size, packed, header = self._read_large_numbers(text, extra, size, packed, header)
        if disk != 0:
            raise self._make_error(f"the zip entry {quote(text)} is in another file")
        if size != packed:
            raise self._make_error(
                f"the zip entry {quote(text)} has {packed} compressed bytes and {size} "
                "uncompressed bytes, but is not compressed"
            )
        return ZipEntry(text, flags, header, size)

    def _read_large_numbers(self, name: str, extra: bytes, *numbers: int) -> list[int]:
        """Return `numbers`, with 64-bit values from the extra field of the entry if necessary."""
        field = b""
        while len(extra) >= 4:
            kind, size = struct.unpack_from("<2H", extra)
            if kind == 1:
                field = extra[4 : 4 + size]
            extra = extra[4 + size :]
        needed = sum(number == _IN_EXTRA for number in numbers)
        if len(field) < 8 * needed:
            raise self._make_error(f"the zip entry {quote(name)} lacks a 64-bit size or offset")
        large = iter(struct.unpack_from(f"<{needed}Q", field))
        return [next(large) if number == _IN_EXTRA else number for number in numbers]

    def _check_layout(self) -> None:
        """Check that the entries do not overlap, and store the end offset of each entry."""
        ordered = sorted(self.entries.values(), key=lambda entry: entry.header)
        starts = [entry.header for entry in ordered] + [self._start]
        if starts[0] != 0:
            raise self._make_error("the file does not start with the first zip entry")
        for entry, end in zip(ordered, starts[1:], strict=True):
            if entry.header + _LOCAL_HEADER.size + len(entry.name.encode()) + entry.size > end:
                raise self._make_error(
                    f"the zip entry {quote(entry.name)} overlaps the following data"
                )
        self._ends = {entry.name: end for entry, end in zip(ordered, starts[1:], strict=True)}
