//! Operations that consist of others or belong to others: futures, children, scopes, groups.

mod backpressure;
mod cancellation;
mod children;
mod futures;
mod resources;
mod scopes;
