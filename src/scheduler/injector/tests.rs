//! Tests of the injector on one thread, including states that a stopped thread can leave behind.

use super::{super::testing::Ready, *};

const URGENT: u8 = DEFAULT_BAND + 8;

fn pop(injector: &Injector<usize>, band: u8, max: usize) -> Option<(Vec<*mut Op<usize>>, Rest)> {
    injector.pop(band, max).map(|(chain, rest)| (chain.map(|op| op.as_ptr()).collect(), rest))
}

#[test]
fn a_band_is_first_in_first_out_and_a_pop_reports_published_operations() {
    for band in [DEFAULT_BAND, URGENT] {
        let (injector, ops) = (Injector::default(), Ready::new(5, band));
        let order: Vec<_> = ops.iter().map(|op| op.as_ptr()).collect();
        assert!(injector.is_empty());
        ops.iter().for_each(|op| injector.push(op.right()));
        assert!(!injector.is_empty());
        assert_eq!(injector.highest(), (band == URGENT).then_some(URGENT));
        assert_eq!(pop(&injector, band, 2), Some((order[..2].to_vec(), Rest::Published)));
        assert!(!injector.is_empty());
        assert_eq!(pop(&injector, band, 1), Some((order[2..3].to_vec(), Rest::Unchanged)));
        assert_eq!(pop(&injector, band, 9), Some((order[3..].to_vec(), Rest::Unchanged)));
        assert_eq!(pop(&injector, band, 9), None);
        assert!(injector.is_empty());
    }
}

#[test]
fn a_chain_knows_whether_it_has_more() {
    let (injector, ops) = (Injector::default(), Ready::new(2, DEFAULT_BAND));
    ops.iter().for_each(|op| injector.push(op.right()));
    let (mut chain, _) = injector.pop(DEFAULT_BAND, 2).expect("the injector should have two operations");
    for left in [true, false] {
        assert!(chain.next().is_some());
        assert_eq!(chain.has_more(), left);
    }
}

#[test]
fn a_popper_marks_the_band_of_the_rest_before_its_pusher_does() {
    let (injector, ops) = (Injector::default(), Ready::new(2, URGENT));
    ops.iter().for_each(|op| injector.band(URGENT).push(op.right()));
    assert_eq!(injector.highest(), None);
    assert!(matches!(pop(&injector, URGENT, 1), Some((_, Rest::Published))));
    assert_eq!(injector.highest(), Some(URGENT));
    assert!(matches!(pop(&injector, URGENT, 1), Some((_, Rest::Unchanged))));
}

/// If the rest went to the back, operations held by a slow popper would run after those pushed in the meantime.
#[test]
fn the_rest_of_a_slow_popper_goes_in_front() {
    let (injector, ops) = (Injector::default(), Ready::new(5, DEFAULT_BAND));
    let order: Vec<_> = ops.iter().map(|op| op.as_ptr()).collect();
    let band = injector.band(DEFAULT_BAND);
    ops[2..].iter().for_each(|op| injector.push(op.right()));
    assert_eq!(pop(&injector, DEFAULT_BAND, 1), Some((order[2..3].to_vec(), Rest::Published)));
    // A popper has taken the first two, and reversed them, before the others were pushed. Relaxed: there is one thread.
    ops[0].right().link.store(order[1], Relaxed);
    let [first, last] = [ops[0], ops[1]].map(|op| op.right().into_ptr());
    // SAFETY: the chain belongs to this test, and is known to no other thread.
    unsafe { band.prepend(first, last) };
    for op in [0, 1, 3, 4] {
        assert_eq!(pop(&injector, DEFAULT_BAND, 1), Some((vec![order[op]], Rest::Unchanged)));
    }
    assert!(injector.is_empty());
}

#[test]
fn a_pop_clears_the_mark_of_an_empty_band() {
    let injector = Injector::<usize>::default();
    injector.mark(URGENT);
    injector.mark(DEFAULT_BAND);
    assert_eq!((injector.highest(), injector.is_empty()), (Some(URGENT), false));
    assert_eq!(pop(&injector, URGENT, 1), None);
    assert_eq!((injector.highest(), injector.is_empty()), (None, true));
}

#[test]
fn debug_output_says_whether_the_injector_is_empty() {
    let injector = Injector::<usize>::default();
    assert_eq!(format!("{injector:?}"), "Injector { is_empty: true, .. }");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only debug builds assert this")]
#[should_panic(expected = "operations are left in an injector")]
fn an_injector_is_not_dropped_with_operations_in_it() {
    let ops = Ready::new(1, DEFAULT_BAND);
    let injector = Injector::default();
    injector.push(ops[0].right());
}

#[test]
fn an_inbox_is_empty_after_a_pop() {
    let (injector, ops) = (Injector::default(), Ready::new(2, DEFAULT_BAND));
    assert!(injector.is_inbox_empty());
    ops.iter().for_each(|op| injector.push(op.right()));
    assert!(!injector.is_inbox_empty());
    assert!(injector.pop(DEFAULT_BAND, 1).is_some());
    assert!(injector.is_inbox_empty(), "the rest is not in `ready`");
    assert!(injector.pop(DEFAULT_BAND, 1).is_some());
}

#[test]
fn bands_above_the_default_are_urgent() {
    for band in [1, DEFAULT_BAND - 1, DEFAULT_BAND, DEFAULT_BAND + 1, HIGHEST_BAND] {
        let injector = Injector::<usize>::default();
        injector.mark(band);
        assert_eq!(injector.is_urgent(), band > DEFAULT_BAND, "band {band}");
    }
}
