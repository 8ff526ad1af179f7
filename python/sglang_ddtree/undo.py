# SPDX-License-Identifier: Apache-2.0
"""The way back, from what a record says was changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_ddtree import atomic, envfile
from sglang_ddtree.errors import Failed, ServerError
from sglang_ddtree.journal import Record
from sglang_ddtree.service import Service

# What a cutover may have changed, as its record names it.
ENVIRONMENT, LIVE_MODE, RESTARTED = "environment file", "live mode", "restarted"


def undo(record: Record, service: Service, log: Path) -> list[str]:
    """Bring back what ``record`` says was there before; returns what was done, a line each.

    The environment file comes first: it decides what any restart starts.

    Raises:
        Failed: the service is not back in the mode it was in.
    """
    changed: list[str] = record.data["changed"]
    mode: str = record.data["before"]["mode"]
    done: list[str] = []
    if ENVIRONMENT in changed:
        done.append(_restore_environment(record.data["environment"]))
    if RESTARTED in changed:
        service.restart(log)
        service.wait_for(mode)
        done.append(f"restarted the service; it is healthy in mode {mode}")
    elif LIVE_MODE in changed:
        done.append(_switch_back(service, mode, log))
    return done


def _switch_back(service: Service, mode: str, log: Path) -> str:
    try:
        service.switch_live(mode)
    except Failed as error:
        if service.supervisor is not None:
            service.progress.say(f"the live switch back failed ({error}); restarting")
            service.restart(log)
            how = "restarted the service"
        else:
            service.progress.say(f"the live switch back failed ({error}); waiting, since nothing here restarts it")
            how = "waited for the service"
        # What starts it anew may give it another mode.
        if service.wait_for(None).mode != mode:
            service.switch_live(mode)
        return f"{how}, as it could not be switched back live ({error}); it is healthy in mode {mode}"
    return f"switched the running server back to {mode}"


def _restore_environment(facts: dict[str, Any]) -> str:
    """The file as it was, if nobody edited it since; else only the variable. A rename needs no space on the disk."""
    path, backup = Path(facts["path"]), Path(facts["backup"])
    try:
        present = envfile.digest(path.read_bytes())
        if present == facts["digest_before"]:
            return f"{path} is as it was"
        if present == facts.get("digest_after") and backup.exists():
            atomic.replace(backup, path)
            return f"{path} is back from its backup"
        envfile.set_value(path, facts["value"])
    except OSError as error:
        raise Failed(f"{path} cannot be brought back ({error.strerror}); its backup is {backup}") from error
    value = facts["value"]
    was = f"set to {value}" if value is not None else "taken out"
    return f"{path} was edited since, so only {envfile.VARIABLE} was {was} again"


def may_be_healthy(service: Service) -> str:
    """One line on the service for a report of a failed way back."""
    trouble = service.server.unhealthy()
    if trouble:
        return f"the server at {service.server.url} {trouble}"
    try:
        return f"the server at {service.server.url} is healthy in mode {service.server.state().mode}"
    except ServerError as error:
        return f"the server is healthy, but {error}"
