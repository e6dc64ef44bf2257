"""A function for a flow: alarms of devices that are too hot, each with the number of degrees.

penstock serve --flows examples/flows/functions.toml     # in the folder of the project

penstock pub plant/7/temp -m '{"celsius": 95}'
penstock sub 'alarms/#'
"""

import json

from penstock.flows.functions import FunctionMessage, FunctionOutput, RejectMessage

LIMIT = 90


def alarm(message: FunctionMessage) -> FunctionOutput | None:
    """Called for each message. What it returns is published; an exception has the message tried again."""
    try:
        celsius = float(json.loads(message.payload)["celsius"])
    except (ValueError, KeyError, TypeError) as error:
        raise RejectMessage(f"no temperature: {error!r}") from None  # it would not be better the next time
    if celsius <= LIMIT:
        return None
    device = message.topic.split("/")[1]
    return FunctionOutput(f"alarms/{device}", f"{celsius - LIMIT:.1f} degrees too hot", key=device)
