"""The headings of docs/configuration.md that keys stand under."""

from __future__ import annotations

PLACES = "Places"
READERS = "What readers see"
KEPT = "What is kept"
FETCHED = "What is fetched, and how"
NODES = "Several nodes"
TOLD = "Logs and metrics"
