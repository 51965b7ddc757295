//! Checks that the models are real: that the flags are set, that loom explores several interleavings of the library's
//! own code with two flavours of reclamation, and that loom finds a planted race.
//!
//! Flags are easily lost: `RUSTFLAGS` in the environment replaces the flags of a configuration file, and all tests then
//! pass because no model runs. Commands that run the models set `RADDLE_LOOM=1`, with which a test in this file fails
//! if a flag is missing.

/// The only test in this file that exists without the flags.
#[test]
fn the_flags_are_set_if_the_models_are_requested() {
    if std::env::var_os("RADDLE_LOOM").is_some_and(|wanted| wanted == "1") {
        let (ours, crossbeams) = (cfg!(raddle_loom), cfg!(crossbeam_loom));
        assert!(ours, "the models are requested by RADDLE_LOOM=1, but `--cfg raddle_loom` is not set; unset RUSTFLAGS");
        assert!(
            crossbeams,
            "the models are requested by RADDLE_LOOM=1, but `--cfg crossbeam_loom` is not set; unset RUSTFLAGS"
        );
    }
}

#[cfg(raddle_loom)]
mod under_loom {
    use std::sync::Arc;

    use loom::thread;
    use raddle::internals::{AsyncState, Flavour, Mode};
    use raddle_loom_tests::{COMPLETE, World, model, must_fail};

    fn two_threads_push_on_one_variable() {
        let world = World::new(1);
        let [one, two] = [(); 2].map(|()| world.op(&[(0, Mode::Write)]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(one));
        world.push_and_run(two);
        thread.join().unwrap();
        world.end();
    }

    #[test]
    fn the_contract_flavour_has_many_interleavings() {
        assert!(model(2, Flavour::Contract, two_threads_push_on_one_variable) > 10);
    }

    #[test]
    fn the_crossbeam_flavour_has_more_interleavings_than_the_contract() {
        let crossbeam = model(1, Flavour::Crossbeam, two_threads_push_on_one_variable);
        let contract = model(1, Flavour::Contract, two_threads_push_on_one_variable);
        assert!(crossbeam > contract, "crossbeam-epoch does not use loom's atomics: {crossbeam} <= {contract}");
    }

    /// `AsyncState::fail` may be called only once for each state; two threads that call it race on the state's cell.
    #[test]
    #[ignore = "fails by design; run by the test below"]
    fn planted_race() {
        model(COMPLETE, Flavour::Contract, || {
            let state = Arc::new(AsyncState::default());
            let other = Arc::clone(&state);
            // SAFETY: deliberately violated; loom must report the race.
            let thread = thread::spawn(move || unsafe { other.fail(1) }.is_ok());
            // SAFETY: deliberately violated; loom must report the race.
            let failed = unsafe { state.fail(2) };
            let _ = (failed, thread.join());
        });
    }

    #[test]
    fn a_planted_race_is_found() {
        must_fail!(planted_race, "Causality violation");
    }
}
