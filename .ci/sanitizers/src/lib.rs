//! Empty: this package exists for its tests, which `.ci/run sanitizers` runs.
