//! Models of the protocols of `raddle` under loom; see `tests/`.
