use std::iter;

use super::*;
use crate::tracker::{ReadyList, Room, end};

#[test]
fn delays_are_random_and_shorter_than_the_limit() {
    let delays = |seed| {
        let shuffler = Shuffler::<()>::new(seed, false);
        (0..1000).map(|_| shuffler.delay(Duration::from_micros(100)).as_nanos()).collect::<Vec<_>>()
    };
    let delays = [1, 1, 2].map(delays);
    assert!(delays[0] == delays[1] && delays[0] != delays[2]);
    for delays in delays {
        let tenth = |which: u128| delays.iter().filter(|&&delay| delay / 10_000 == which).count();
        assert!((0..10).all(|which| (50..150).contains(&tenth(which))), "{delays:?}");
        assert!(delays.iter().all(|&delay| delay < 100_000));
    }
}

/// The first numbers of the published generator for the seed 0.
#[test]
fn random_numbers_are_those_of_split_mix_64() {
    let mut random = Random(0);
    let numbers = [(); 3].map(|()| random.next());
    assert_eq!(numbers, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
}

#[test]
fn draws_are_counted_once_the_operation_is_in_its_lane() {
    let shuffler = Shuffler::<usize>::new(1, false);
    for draws in 0..3 {
        assert_eq!(shuffler.draws_if_empty(), Some(draws));
        // SAFETY: `new_with` passes a pointer to room for a task.
        let init = |place: *mut usize| unsafe { place.write(7) };
        // SAFETY: the iterator yields no variables, and `init` initialises the task.
        shuffler.put(draws, unsafe { OpRef::new_with(init, Room::default(), 0, false, iter::empty()) });
        assert_eq!(shuffler.draws_if_empty(), None, "an operation is ready");
        shuffler.draw(|op| {
            assert_eq!(shuffler.draws_if_empty(), None, "an operation is not in its lane");
            end(op, &mut ReadyList::default());
        });
    }
}

#[test]
fn a_program_is_not_still_while_the_thread_of_a_wait_that_is_over_has_yet_to_run() {
    let shuffler = Shuffler::<()>::new(1, false);
    let still = |outside| shuffler.is_program_still(outside);
    assert!(still(OutsideWaits::None), "no thread has done anything yet");
    assert!(still(OutsideWaits::Wait), "all threads wait");
    assert!(!still(OutsideWaits::SomeOver));
}
