//! What the pool's records are for.

use super::*;

#[test]
#[cfg_attr(raddle_unpooled, ignore = "every record comes from the heap")]
fn records_of_the_pool_hold_tasks_that_fit_behind_the_accesses() {
    assert!(fits::<u64>());
    assert!(fits::<[u64; 8]>());
    assert!(fits::<[u64; 20]>());
    assert!(!fits::<[u64; 21]>(), "the record is too long");
}
