//! The models under loom, one module for each protocol.

#![cfg(any(raddle_loom, raddle_shuttle))]

use raddle_loom_tests::check;

mod acquire;
mod apart;
mod arrivals;
mod cancel;
mod complete;
mod completion;
mod conflation;
mod delete;
mod devices;
mod family;
mod fork;
mod futures;
mod in_place;
mod injector;
mod latest;
mod loans;
mod pool;
mod push;
mod reclaim;
mod records;
mod shutdown;
mod slabs;
mod sleep;
mod threads;
mod turns;
mod units;
mod unlink;
mod variable;
mod waits;

/// Every side of an edge and every step is needed by a model here, but those whose models have whole engines, which
/// `shuttle.rs` has.
#[test]
fn each_edge_and_each_step_is_needed() {
    let kills = [
        apart::KILLS,
        arrivals::KILLS,
        cancel::KILLS,
        complete::KILLS,
        completion::KILLS,
        conflation::KILLS,
        delete::KILLS,
        devices::KILLS,
        family::KILLS,
        fork::KILLS,
        futures::KILLS,
        in_place::KILLS,
        injector::KILLS,
        latest::KILLS,
        loans::KILLS,
        pool::KILLS,
        push::KILLS,
        reclaim::KILLS,
        records::KILLS,
        shutdown::KILLS,
        slabs::KILLS,
        sleep::KILLS,
        threads::KILLS,
        turns::KILLS,
        units::KILLS,
        unlink::KILLS,
        variable::KILLS,
        waits::KILLS,
    ];
    check(&kills, |declared| !declared.name.starts_with("engine_step::"));
}
