"""Types of the compiled leaf; what things mean is said in _columns.pyx. Arrays are contiguous."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Sizes = NDArray[np.int32]

def find_messages(data: Bytes, positions: Places, skipped_flags: int) -> int: ...
def gather(data: Bytes, starts: Places, lengths: Sizes, offsets: Sizes, values: Bytes) -> None: ...
def find_properties(
    data: Bytes, starts: Places, lengths: Sizes, found: Places, sizes: Sizes, pair_counts: Sizes
) -> None: ...
def find_pairs(data: Bytes, starts: Places, lengths: Sizes, found: Places, sizes: Sizes) -> int: ...
