//! What the pool's records are for.

use super::*;

#[test]
#[cfg_attr(raddle_unpooled, ignore = "every record comes from the heap")]
fn records_of_the_pool_hold_tasks_that_leave_room_for_its_names_and_fit_beside_the_accesses() {
    assert!(fits::<[u64; 8]>());
    assert!(fits::<[u64; 16]>());
    assert!(!fits::<[u64; 32]>(), "the record is too long");
    assert!(!fits::<u64>(), "what helpers may read leaves no room for names");
}
