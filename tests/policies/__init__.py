"""Tests of the pure policies: tables, properties, simulations; no event loop, all in less than two seconds."""
