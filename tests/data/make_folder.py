"""Makes the data folders that tests/unit/store/test_upgrade.py opens. Each was made by the version that wrote its
format:

    git archive COMMIT | tar -x -C OLD && cd OLD && python setup.py build_ext --inplace
    PYTHONPATH=. python .../tests/data/make_folder.py FOLDER && tar -czf .../tests/data/NAME.tar.gz -C FOLDER .

format-1: 29d41c7 (the index's first format), format-2: de526f2, format-3-without-marks: 3e435ff (before the log had an
identity and marks). It uses what all of these versions have.
"""

import shutil
import sys
from pathlib import Path

from lightqueue.message_store import MessageStore
from store.state.changes import GroupMade
from store.state.group_settings import GroupSettings
from tests.support.stores import change, publish, publish_delayed, small, subscribe

data = Path(sys.argv[1])
store = MessageStore(small(data))
subscribe(store, "pump", ["plant/+", "#"])
publish(store, "plant/1", b"on", retain=True)
for number in range(60):
    publish(store, f"plant/{number % 3}", b"%d " % number + bytes(2000))
publish_delayed(store, "plant/later", b"later", due_ms=4_102_444_800_000)
change(store, GroupMade("billing", "plant/+", GroupSettings(), 0))
store.write_index()
store.index.flush()
publish(store, "plant/2", b"last")
store.close()
for path in data.glob("index/LOG*"):
    path.unlink()
for path in (data / "index" / "LOCK", data / "LOCK"):
    path.unlink(missing_ok=True)
shutil.rmtree(data / "index-checkpoint", ignore_errors=True)
