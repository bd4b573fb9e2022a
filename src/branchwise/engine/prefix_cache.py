"""Keys and values of schema prefixes, kept between calls; least recently used out."""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakValueDictionary

from branchwise.backends.base import PrefixHandle


class PrefixCache:
    """Prefix handles by their token ids, bounded by the bytes they hold.

    One cache belongs to one model. The key is the ids themselves, so two schemas share an entry
    exactly when their prefixes are the same tokens. A handle that is evicted, or too large to be
    kept, is still found for as long as somebody holds it: a call never computes its prefix twice.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._handles: OrderedDict[bytes, PrefixHandle] = OrderedDict()
        self._alive: WeakValueDictionary[bytes, PrefixHandle] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def nbytes(self) -> int:
        return sum(handle.nbytes for handle in self._handles.values())

    def get(self, key: bytes) -> PrefixHandle | None:
        if key in self._handles:
            self._handles.move_to_end(key)
        return self._alive.get(key)

    def put(self, key: bytes, handle: PrefixHandle) -> None:
        """Keep ``handle``, unless it alone is over the bound."""
        self._alive[key] = handle
        if handle.nbytes > self.max_bytes:
            return
        self._handles[key] = handle
        self._handles.move_to_end(key)
        while self.nbytes > self.max_bytes:
            self._handles.popitem(last=False)
