"""A store in memory that stops after a number of operations, as a process that is killed would, in
the middle of an upload too."""

from io import BytesIO
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem


class StrangeError(Exception):
    """What the library of a store raises, which is no OSError."""


class FragileStore(MemoryFileSystem):
    """Counts what changes it; after `left` of them nothing works any more until `revive`."""

    protocol = "fragile"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    left: ClassVar[int | None] = None
    done: ClassVar[int] = 0

    @classmethod
    def revive(cls, left: int | None = None) -> None:
        cls.left, cls.done = left, 0

    @classmethod
    def count(cls) -> None:
        if cls.left is not None and cls.done >= cls.left:
            raise StrangeError("connection reset by peer")
        cls.done += 1

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb":
            return Upload(self, self._strip_protocol(path))
        return super().open(path, mode, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("fragile://", "memory://"))

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self.count()
        self.write(self._strip_protocol(path), value)

    def rm_file(self, path: str) -> None:
        self.count()
        super()._rm(path)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        self.count()
        super().cp_file(path1, path2, **options)

    def write(self, path: str, content: bytes) -> None:
        self.store[path] = MemoryFile(self, path, content)


class Upload(BytesIO):
    """An object on its way: where the store stops at its end, half of it has arrived."""

    def __init__(self, store: FragileStore, path: str) -> None:
        super().__init__()
        self.target, self.path = store, path

    def close(self) -> None:
        if self.closed:
            return
        content = self.getvalue()
        super().close()
        try:
            FragileStore.count()
        except StrangeError:
            if FragileStore.done == FragileStore.left:
                FragileStore.done += 1
                self.target.write(self.path, content[: len(content) // 2])
            raise
        self.target.write(self.path, content)


fsspec.register_implementation("fragile", FragileStore, clobber=True)
