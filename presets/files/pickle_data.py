"""Interpret pickles as plain data, without importing or calling names from the file.

A pickle is a program for a stack machine, and the `pickle` module runs any program. This
interpreter only supports instructions for dictionaries of tensors, and globals that the caller
allows. If a pickle calls a global, a function of this package is called instead.

Source: `pickletools` in Python's standard library describes the instructions.
"""

from __future__ import annotations

import dataclasses
import pickletools
import struct
from collections.abc import Callable, Mapping
from typing import Any

from encoder_zoo.common.wording import quote
from encoder_zoo.presets.files.file_bytes import FileBytes

# Limits. For comparison, the pickle of 10,000 tensors has 1.5 MB, 450,000 instructions and depth 3.
_MAX_BYTES = 8 * 2**20
_MAX_INSTRUCTIONS = 1_000_000
_MAX_MARKS = 100
_MAX_NAME_BYTES = 256
_BLOCK_BYTES = 64 * 1024
NOTHING_RUNS = "Only tensors are read, and no code from the file is executed"


@dataclasses.dataclass(frozen=True, slots=True)
class Global:
    """Reference to a class or function.

    Attributes:
        name: String. The qualified name, including the module.
    """

    name: str


class OrderedMapping(dict):
    """Dictionary for a pickled `collections.OrderedDict`, whose attributes are ignored."""

    __slots__ = ()


class PickleStream:
    """Reader for a range of bytes in a file, from start to end.

    Args:
        source: The `FileBytes` to read from.
        start, end: Integers. Start and end of the range in bytes.
        name: String. Part name for error messages.
    """

    def __init__(self, source: FileBytes, start: int, end: int, name: str):
        self.source = source
        self.name = name
        self._end = end
        self._limit = start + _MAX_BYTES
        self._block_start = start
        self._block = b""
        self._used = 0

    @property
    def position(self) -> int:
        """Offset of the next byte in the file."""
        return self._block_start + self._used

    def take(self, count: int) -> bytes:
        """Read the next `count` bytes.

        Raises:
            ValueError: If fewer than `count` bytes are left, or if the pickle is too long.
        """
        if self._used + count > len(self._block):
            self._read_block(count)
        self._used += count
        return self._block[self._used - count : self._used]

    def _read_block(self, count: int) -> None:
        start = self.position
        if start + count > self._end:
            self.source.check_size(start + count)
            raise self.make_error("ends too early")
        if start + count > self._limit:
            raise self.make_error(f"has more than {_MAX_BYTES} bytes")
        end = min(self._end, start + max(count, _BLOCK_BYTES))
        self._block = self.source.read(start, end - start)
        self._block_start, self._used = start, 0

    def take_line(self) -> str:
        """Read a line of ASCII text, and remove the line break."""
        line = b""
        while (sign := self.take(1)) != b"\n":
            line += sign
            if len(line) > _MAX_NAME_BYTES:
                raise self.make_error(f"has a name of more than {_MAX_NAME_BYTES} bytes")
        return line.decode("ascii", "backslashreplace")

    def make_error(self, what: str, *advice: str) -> ValueError:
        """Create a ValueError whose message starts with the file name and the part name."""
        return self.source.make_error(f"{self.name} {what}", *advice)


class PickleInterpreter:
    """Interpret pickles as plain data, without running code.

    Args:
        stream: The `PickleStream` with one or more pickles.
        globals: Optional dictionary that maps the name of each allowed global to a function. If the
            pickle calls the global, this function is called instead. If the function is None, calls
            are rejected. Defaults to None, which means that no globals are allowed.
        persistent: Optional function that converts a persistent id to a value. If None, persistent
            ids will be rejected.

    Example:
        >>> import io, pickle
        >>> def interpret(content):
        ...     file = io.BytesIO(content)
        ...     file.name = "some.bin"
        ...     stream = PickleStream(FileBytes(file), 0, len(content), "the pickle")
        ...     return PickleInterpreter(stream).load()
        >>> interpret(pickle.dumps({"a": [1, 2.5, None]}, protocol=2))
        {'a': [1, 2.5, None]}
        >>> interpret(pickle.dumps(print, protocol=2))
        Traceback (most recent call last):
        ValueError: some.bin: the pickle uses the name '__builtin__.print'. Only tensors are ...
    """

    def __init__(
        self,
        stream: PickleStream,
        globals: Mapping[str, Callable[[tuple], object] | None] | None = None,
        persistent: Callable[[object], object] | None = None,
    ):
        self._stream = stream
        self._globals = globals or {}
        self._persistent = persistent

    def load(self) -> object:
        """Interpret the next pickle.

        Returns:
            None, bool, int, float, str, tuple, list, dict, `OrderedMapping`, `Global`, or a result
            of the functions in `globals` and `persistent`.

        Raises:
            ValueError: If the pickle is damaged or contains unsupported names or instructions.
        """
        self._stack: list = []
        self._below: list[list] = []  # the stacks below each mark
        self._memo: list = []
        for _ in range(_MAX_INSTRUCTIONS):
            code = self._stream.take(1)
            if code == b".":
                return self._stop()
            if code not in _INSTRUCTION:
                raise self._make_error(f"contains the instruction {_name_instruction(code)}")
            _INSTRUCTION[code](self)
        raise self._make_error(f"has more than {_MAX_INSTRUCTIONS} instructions")

    def _make_error(self, what: str) -> ValueError:
        return self._stream.make_error(what, NOTHING_RUNS)

    def _read_number(self, layout: str) -> Any:
        return struct.unpack(layout, self._stream.take(struct.calcsize(layout)))[0]

    def _pop(self, count: int) -> list:
        """Pop the top values from the stack. All values must be above the last mark."""
        if len(self._stack) < count:
            raise self._stream.make_error("takes a value from an empty stack")
        values = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return values

    def _pop_mark(self) -> list:
        if not self._below:
            raise self._stream.make_error("uses a mark that does not exist")
        values, self._stack = self._stack, self._below.pop()
        return values

    def _get_top(self, kind: type | tuple[type, ...], word: str) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise self._make_error(f"modifies an object that is not {word}")
        return self._stack[-1]

    def _stop(self) -> object:
        (value,) = self._pop(1)
        if self._stack or self._below:
            raise self._stream.make_error("ends with values on its stack")
        return value

    def _check_protocol(self) -> None:
        if (version := self._stream.take(1)[0]) != 2:
            raise self._make_error(f"has protocol {version}. Expected protocol 2")

    def _mark(self) -> None:
        if len(self._below) >= _MAX_MARKS:
            raise self._stream.make_error(f"is nested more than {_MAX_MARKS} deep")
        self._below.append(self._stack)
        self._stack = []

    def _push_long(self) -> None:
        content = self._stream.take(self._stream.take(1)[0])
        self._stack.append(int.from_bytes(content, "little", signed=True))

    def _push_text(self) -> None:
        content = self._stream.take(self._read_number("<I"))
        try:
            self._stack.append(content.decode("utf-8"))
        except UnicodeDecodeError:
            raise self._stream.make_error(f"has text that is not UTF-8: {quote(content)}") from None

    def _push_tuple(self, values: list) -> None:
        self._stack.append(tuple(values))

    def _push_global(self) -> None:
        name = f"{self._stream.take_line()}.{self._stream.take_line()}"
        if name not in self._globals:
            raise self._make_error(f"uses the name {quote(name)}")
        self._stack.append(Global(name))

    def _push_persistent(self) -> None:
        (key,) = self._pop(1)
        if self._persistent is None:
            raise self._make_error("refers to an external object")
        self._stack.append(self._persistent(key))

    def _memorize(self, index: int) -> None:
        if not self._stack:
            raise self._stream.make_error("memoizes a value from an empty stack")
        # Memoized values have consecutive indices.
        if index != len(self._memo):
            raise self._stream.make_error(f"has the memo index {index}. Expected {len(self._memo)}")
        self._memo.append(self._stack[-1])

    def _push_memo(self, index: int) -> None:
        if index >= len(self._memo):
            raise self._stream.make_error(
                f"refers to the memo index {index}, but only has {len(self._memo)} memoized values"
            )
        self._stack.append(self._memo[index])

    def _extend(self, values: list) -> None:
        self._get_top(list, "a list").extend(values)

    def _set_items(self, values: list) -> None:
        target = self._get_top(dict, "a dictionary")
        if len(values) % 2:
            raise self._stream.make_error("sets a key without a value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            # With larger integers, an attacker could choose keys that all have the same hash.
            if type(key) is not str and (type(key) is not int or abs(key) >= 2**32):
                raise self._make_error("has a key that is neither a string nor a small integer")
            if key in target:
                raise self._stream.make_error(f"sets the key {quote(key)} twice")
            target[key] = value

    def _reduce(self) -> None:
        called, arguments = self._pop(2)
        function = self._globals.get(called.name) if isinstance(called, Global) else None
        if function is None or type(arguments) is not tuple:
            name = quote(called.name) if isinstance(called, Global) else "a non-function"
            raise self._make_error(f"calls {name}")
        self._stack.append(function(arguments))

    def _build(self) -> None:
        (state,) = self._pop(1)
        self._get_top(OrderedMapping, "an OrderedDict")
        if type(state) is not dict:
            raise self._make_error("gives an OrderedDict a state that is not a dictionary")
        # The state of an OrderedDict contains layer versions, which are not needed.


def _name_instruction(code: bytes) -> str:
    names = {opcode.code: opcode.name for opcode in pickletools.opcodes}
    return names.get(code.decode("latin-1")) or f"0x{code.hex()}, which is unknown"


_INSTRUCTION: dict[bytes, Callable[[PickleInterpreter], None]] = {
    b"\x80": PickleInterpreter._check_protocol,
    b"(": PickleInterpreter._mark,
    b"N": lambda self: self._stack.append(None),
    b"\x88": lambda self: self._stack.append(True),
    b"\x89": lambda self: self._stack.append(False),
    b"K": lambda self: self._stack.append(self._read_number("<B")),
    b"M": lambda self: self._stack.append(self._read_number("<H")),
    b"J": lambda self: self._stack.append(self._read_number("<i")),
    b"G": lambda self: self._stack.append(self._read_number(">d")),
    b"\x8a": PickleInterpreter._push_long,
    b"X": PickleInterpreter._push_text,
    b")": lambda self: self._stack.append(()),
    b"]": lambda self: self._stack.append([]),
    b"}": lambda self: self._stack.append({}),
    b"\x85": lambda self: self._push_tuple(self._pop(1)),
    b"\x86": lambda self: self._push_tuple(self._pop(2)),
    b"\x87": lambda self: self._push_tuple(self._pop(3)),
    b"t": lambda self: self._push_tuple(self._pop_mark()),
    b"a": lambda self: self._extend(self._pop(1)),
    b"e": lambda self: self._extend(self._pop_mark()),
    b"s": lambda self: self._set_items(self._pop(2)),
    b"u": lambda self: self._set_items(self._pop_mark()),
    b"c": PickleInterpreter._push_global,
    b"R": PickleInterpreter._reduce,
    b"b": PickleInterpreter._build,
    b"Q": PickleInterpreter._push_persistent,
    b"q": lambda self: self._memorize(self._read_number("<B")),
    b"r": lambda self: self._memorize(self._read_number("<I")),
    b"h": lambda self: self._push_memo(self._read_number("<B")),
    b"j": lambda self: self._push_memo(self._read_number("<I")),
}
