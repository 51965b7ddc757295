//! Nothing; this package is there for its tests, which `.ci/run sanitizers` runs.
