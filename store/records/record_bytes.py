"""Functions that build and read records' bytes for the wire: compiled, or in plain Python if nothing was compiled.

A client needs only these. A store and a gateway need the compiled leaves themselves.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.records._records import RecordBatch, check_records, plain_messages, plain_messages_of, walk
else:
    try:
        from store.records._records import RecordBatch, check_records, plain_messages, plain_messages_of, walk
    except ImportError:
        from store.records.plain_records import RecordBatch, check_records, plain_messages, plain_messages_of, walk

__all__ = ["RecordBatch", "check_records", "plain_messages", "plain_messages_of", "walk"]
