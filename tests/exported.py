"""Exported models in the tests' own process: the objects of a static library, without a linker."""

import ctypes
import struct

import torch
from torch.utils import _pytree as pytree

import mlirc
from mlirc.runtime.loader import Library


def members(path):
    """The objects of an archive, by name, and its index: symbol -> name."""
    data = path.read_bytes()
    assert data.startswith(b"!<arch>\n")
    at, found, starts, index = 8, {}, {}, b""
    while at < len(data):
        name, size, end = data[at : at + 16].decode().strip(), int(data[at + 48 : at + 58]), data[at + 58 : at + 60]
        assert end == b"`\n"
        body = data[at + 60 : at + 60 + size]
        if name == "/":
            index = body
        else:
            found[name.removesuffix("/")], starts[at] = body, name.removesuffix("/")
        at += 60 + size + size % 2
    (count,) = struct.unpack_from(">I", index)
    places = struct.unpack_from(f">{count}I", index, 4)
    names = index[4 + 4 * count :].split(b"\0")[:count]
    return found, {n.decode(): starts[p] for n, p in zip(names, places)}


class Model:
    """The C functions of a library in memory, or of a shared one, called with tensors."""

    def __init__(self, path):
        self.name = path.stem
        if path.suffix == ".so":
            self.library = ctypes.CDLL(str(path))
            self._function = self.library.__getattr__
        else:
            self.library = Library(members(path)[0])
            self._function = self.library.address

    def function(self, name, result=ctypes.c_int, *arguments):
        """The function NAME_`name`."""
        found = self._function(f"{self.name}_{name}")
        kind = ctypes.CFUNCTYPE(result, *arguments)
        return kind(found) if isinstance(found, int) else kind(ctypes.cast(found, ctypes.c_void_p).value)

    def run(self, inputs, outputs, sizes=(), workspace=None):
        """The status. `inputs` and `outputs` are tensors, or None for a null pointer."""
        call = self.function("run", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        pointers = [(ctypes.c_void_p * max(len(x), 1))(*[None if t is None else t.data_ptr() for t in x]) for x in (inputs, outputs)]
        return call(*pointers, (ctypes.c_int64 * len(sizes))(*sizes) if sizes else None, workspace)

    def error(self, status):
        return self.function("error", ctypes.c_char_p, ctypes.c_int)(status).decode()

    def workspace(self, sizes=()):
        return self.function("workspace", ctypes.c_size_t, ctypes.c_void_p)((ctypes.c_int64 * max(len(sizes), 1))(*sizes))

    def output_bytes(self, number, sizes=()):
        call = self.function("output_bytes", ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        return call(number, (ctypes.c_int64 * max(len(sizes), 1))(*sizes))

    def __call__(self, inputs, like, sizes=()):
        """New outputs, of the shapes and dtypes of `like`."""
        outputs = [torch.full(t.shape, 77, dtype=t.dtype) for t in like]
        status = self.run(inputs, outputs, sizes)
        assert status == 0, self.error(status)
        assert [self.output_bytes(i, sizes) for i in range(len(outputs))] == [t.nbytes for t in outputs]
        return outputs


def export(module, args, path, dynamic_shapes=None, options=None):
    """The library of a module."""
    with torch.no_grad():
        program = torch.export.export(module, args, dynamic_shapes=dynamic_shapes)
    mlirc.export(program, path, options=options)
    return Model(path)


def tensors(value):
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
