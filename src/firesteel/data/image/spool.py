"""A spool with images in it, decoded as rows are taken. Lives in the child."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from firesteel.core.spec import Batch, Signature
from firesteel.data.image.column import Images, Rows
from firesteel.data.spool import Block, SpoolReader

__all__ = ["ImageSpool"]


class ImageSpool(SpoolReader):
    """See ``SpoolReader``; the tensors named in ``images`` come out decoded, by ``threads`` threads."""

    def __init__(
        self,
        descriptors: dict[str, int],
        signature: Signature,
        blocks: tuple[Block, ...],
        images: dict[str, Images],
        seed: int,
        threads: int,
    ) -> None:
        super().__init__(descriptors, signature, blocks)
        self._heaps = {name: self._cells.pop(name) for name in images}
        self._images = images
        self._seed = seed
        self._begins = np.array([block.begin for block in blocks], dtype=np.int64)
        self._partitions = np.array([block.partition for block in blocks], dtype=np.int64)
        # Pillow lets go of the interpreter's lock while it decodes.
        self._pool = ThreadPoolExecutor(threads, "firesteel-decode") if threads > 1 else None
        self._none: Batch | None = None

    def take(self, rows: npt.NDArray[np.int64], epoch: int = 0) -> Batch:
        """A copy of these rows, as they look in this epoch."""
        batch = super().take(rows, epoch)
        block = np.searchsorted(self._begins, rows, side="right") - 1
        which = Rows(self._seed, epoch, self._partitions[block], rows - self._begins[block])
        read = 0
        for name, images in self._images.items():
            heap = self._heaps[name]
            cells = [heap[begin : begin + length] for begin, length in batch[name].tolist()]
            read += sum(map(len, cells))
            batch[name] = images.decode(cells, which, self._pool)
        self._release(read)
        return batch

    def empty(self) -> Batch:
        """A batch of no rows, with the right dtypes and shapes, as far as this rank can know them."""
        if self._none is None:
            some = self.take(np.arange(min(1, self._rows), dtype=np.int64)) if self._rows else super().empty()
            for name, images in self._images.items() if not self._rows else ():
                some[name] = images.decode([])
            self._none = {name: values[:0] for name, values in some.items()}
        return self._none
