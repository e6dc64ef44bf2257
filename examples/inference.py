"""A queue of jobs for slow models: request, worker, status row, result.

python examples/inference.py work --seconds 5 &
python examples/inference.py ask "is this message spam?"
python examples/inference.py status
"""

import argparse
import asyncio
import json
import os
import time
import uuid

from penstock import Client

STORE = "penstock://localhost:7700"
REQUESTS, STATUS, RESULTS = "inference/requests", "inference/status", "inference/results"
INVISIBLE_S = 10  # a worker that does not extend its job for so long loses it


def infer(text: str, seconds: float) -> str:
    """The model: it thinks for a while, and takes capital letters for spam."""
    time.sleep(seconds)
    return "spam" if text.isupper() else "no spam"


async def set_status(client: Client, job: str, state: str, **more: object) -> None:
    """The status row of a job is a retained message: a later reader sees the newest."""
    row = json.dumps({"state": state, **more})
    await client.publish(f"{STATUS}/{job}", row, key=job, retain=True)


async def ask(store: str, text: str) -> None:
    """Submit a job, and wait for its result."""
    job = uuid.uuid4().hex[:8]
    async with Client(store) as client:
        await set_status(client, job, "queued")
        request = await client.publish(REQUESTS, text, key=job)
        print(f"job {job}", flush=True)
        async for result in client.read(f"{RESULTS}/{job}", start=request.log_offset, stop=None):
            print(f"{result.payload.decode()} (by worker {result.headers['worker']})", flush=True)
            break


async def work(store: str, seconds: float) -> None:
    """Do one job at a time. A worker that is killed has not acknowledged its job, so another one gets it."""
    worker = str(os.getpid())
    async with Client(store) as client:
        async for job in client.subscribe(REQUESTS, group="models", prefetch=1, invisible=INVISIBLE_S):
            assert job.key is not None
            await set_status(client, job.key, "running", worker=worker, attempt=job.deliveries)
            print(f"{job.key} attempt {job.deliveries}", flush=True)
            thinking = asyncio.create_task(asyncio.to_thread(infer, job.payload.decode(), seconds))
            while not (await asyncio.wait([thinking], timeout=INVISIBLE_S / 3))[0]:
                await job.extend(INVISIBLE_S)
            await client.publish(f"{RESULTS}/{job.key}", thinking.result(), key=job.key, headers={"worker": worker})
            await set_status(client, job.key, "done", worker=worker, attempt=job.deliveries)
            await job.ack()


async def status(store: str) -> None:
    """The newest row of each job."""
    async with Client(store) as client:
        rows = {row.key: row.payload.decode() async for row in client.read(f"{STATUS}/#", start="-1d")}
    for job, row in rows.items():
        print(job, row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default=STORE, help="address of the store (%(default)s)")
    where = argparse.ArgumentParser(add_help=False)  # the same option, behind the command
    where.add_argument("--store", default=argparse.SUPPRESS, help=f"address of the store ({STORE})")
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask", parents=[where], help="hand in a job, and wait for its result")
    asking.add_argument("text", help="what the model is to look at")
    working = commands.add_parser("work", parents=[where], help="do jobs, until Ctrl-C")
    working.add_argument("--seconds", type=float, default=1.0, help="how long a job takes (%(default)s)")
    commands.add_parser("status", parents=[where], help="show the jobs of the last day")
    given = parser.parse_args()
    match given.command:
        case "ask":
            asyncio.run(ask(given.store, given.text))
        case "work":
            asyncio.run(work(given.store, given.seconds))
        case "status":
            asyncio.run(status(given.store))


if __name__ == "__main__":
    main()
