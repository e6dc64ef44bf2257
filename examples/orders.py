"""Orders whose steps are done one by one, however many workers share them.

python examples/orders.py work &
python examples/orders.py place --orders 10
"""

import argparse
import asyncio

from penstock import Client

STORE = "penstock://localhost:7700"
STEPS = ("placed", "paid", "packed", "shipped")


async def place(store: str, orders: int) -> None:
    """Publish all steps of some orders: the order is the key, so its messages stay in order."""
    async with Client(store) as client:
        for step in STEPS:
            await asyncio.gather(*(client.publish(f"orders/{step}", key=f"order-{n}") for n in range(orders)))
    print(f"{orders} orders placed", flush=True)


async def work(store: str, seconds: float) -> None:
    """Work on steps as they come; while one step of an order is in work, its next step waits, for every worker."""
    async with Client(store) as client, client.subscribe("orders/#", group="fulfilment", ordered=True) as orders:
        print("ready", flush=True)
        async for message in orders:
            await asyncio.sleep(seconds)  # charge the card, print the label ...
            print(message.key, message.topic.removeprefix("orders/"), flush=True)
            await message.ack()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default=STORE, help="address of the store (%(default)s)")
    where = argparse.ArgumentParser(add_help=False)  # the same option, behind the command
    where.add_argument("--store", default=argparse.SUPPRESS, help=f"address of the store ({STORE})")
    commands = parser.add_subparsers(dest="command", required=True)
    placing = commands.add_parser("place", parents=[where], help="publish orders")
    placing.add_argument("--orders", type=int, default=10, help="how many (%(default)s)")
    working = commands.add_parser("work", parents=[where], help="work on orders, until Ctrl-C")
    working.add_argument("--seconds", type=float, default=0.1, help="how long a step takes (%(default)s)")
    given = parser.parse_args()
    asyncio.run(place(given.store, given.orders) if given.command == "place" else work(given.store, given.seconds))


if __name__ == "__main__":
    main()
