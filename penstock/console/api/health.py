"""Whether the console and its store are well; for this no user is needed."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.console.access.state import console_of
from penstock.console.errors import NoStoreAnswers, NotAdmitted, TooManyUsers
from penstock.console.store.connections import OPEN
from store.version import VERSION

router = APIRouter(tags=["server"])


class Health(BaseModel):
    status: Literal["ok", "store away"]
    version: str = Field(description="Of the console.")
    detail: str = Field(default="", description="Why the store is away.")


@router.get(
    "/health",
    operation_id="get_health",
    summary="Whether the console reaches its store",
    responses={503: {"model": Health}},
)
async def health(request: Request, response: Response) -> Health:
    try:
        connection = await console_of(request).connections.of(OPEN)
    except (NotAdmitted, TooManyUsers):  # there is a store, and it asks for users
        return Health(status="ok", version=VERSION)
    except NoStoreAnswers as error:
        response.status_code = 503
        return Health(status="store away", version=VERSION, detail=str(error))
    if connection.is_connected:
        return Health(status="ok", version=VERSION)
    response.status_code = 503
    return Health(status="store away", version=VERSION, detail="the connection to the store is being made again")
