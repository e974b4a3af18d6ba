"""All tests. Helpers that several folders share lie here: `pattern` (computed file contents), `conftest` (rules)."""
