use super::*;

/// Resources of which one waiter after another needs units. A waiter is a number.
struct World(Vec<Arc<Stock<u32>>>);

impl World {
    fn new(units: &[u64]) -> Self {
        Self(units.iter().map(|&units| Arc::new(Stock::new(0, units, false))).collect())
    }

    fn needs(&self, units: &[u64]) -> NeedsOf<u32> {
        let need = |(resource, &units): (&Arc<Stock<u32>>, &u64)| Need { resource: Arc::clone(resource), units };
        let mut needs = self.0.iter().zip(units).map(need).collect();
        merge(&mut needs);
        join(&needs);
        needs
    }

    /// Lets a waiter enter. Returns whether it has its units.
    fn enter(&self, band: u8, units: &[u64], waiter: u32) -> bool {
        match Stock::enter(band, &self.needs(units), waiter, |_| true, |_| {}) {
            Admission::Admitted(_) => true,
            Admission::Waits => false,
            Admission::Unwanted(_) => unreachable!("every waiter is wanted"),
        }
    }

    /// Gives units back. Returns the waiters that are admitted.
    fn give_back(&self, units: &[u64]) -> Vec<u32> {
        Stock::give_back(&self.needs(units)).into_iter().map(|left| left.waiter).collect()
    }

    fn taken(&self) -> Vec<u64> {
        self.0.iter().map(|resource| resource.taken.get()).collect()
    }
}

#[test]
fn all_units_are_taken_at_once_or_none() {
    let world = World::new(&[1, 2]);
    assert!(world.enter(0, &[1, 0], 0));
    assert!(!world.enter(0, &[1, 2], 1));
    assert_eq!(world.taken(), [1, 0], "units were taken for a waiter that lacks others");
    assert!(world.enter(0, &[0, 2], 2));
    assert_eq!(world.give_back(&[1, 0]), []);
    assert_eq!(world.give_back(&[0, 2]), [1]);
    assert_eq!(world.taken(), [1, 2]);
}

#[test]
fn a_waiter_is_overtaken_by_at_most_32_in_any_of_its_resources() {
    let world = World::new(&[1, 4]);
    assert!(world.enter(0, &[1, 0], 0) && world.enter(0, &[0, 1], 1));
    assert!(!world.enter(0, &[1, 2], 2), "this one lacks a unit of the first resource");
    let overtake = |waiter| {
        let overtakes = world.enter(0, &[0, 2], waiter);
        if overtakes {
            assert_eq!(world.give_back(&[0, 2]), []);
        }
        overtakes
    };
    assert_eq!((3..100).filter(|&waiter| overtake(waiter)).count(), 32);
    assert!(world.enter(0, &[0, 1], 100), "what the starved waiter does not need is kept as well");
    assert_eq!(world.give_back(&[0, 1]), []);
    assert_eq!(world.give_back(&[1, 0])[0], 2);
}

#[test]
fn waiters_that_are_not_the_first_of_their_queue_are_overtaken_by_at_most_32() {
    let world = World::new(&[4]);
    assert!(world.enter(0, &[2], 0));
    assert!(!world.enter(0, &[4], 1));
    let overtaking = (0..20).filter(|_| world.enter(0, &[1], 9) && world.give_back(&[1]).is_empty()).count();
    assert_eq!(overtaking, 20);
    assert!(!world.enter(0, &[4], 2));
    let overtaking = (0..20).filter(|_| world.enter(0, &[1], 9) && world.give_back(&[1]).is_empty()).count();
    assert_eq!(overtaking, 12, "the first waiter is overtaken by more than 32");
    assert_eq!(world.give_back(&[2]), [1]);
    // The eight that could not overtake have come later than the second waiter; twelve have overtaken it.
    let mut order = world.give_back(&[4]);
    while !order.contains(&2) {
        order.extend(world.give_back(&[1]));
    }
    assert!(order.len() <= 8 + 1);
}

#[test]
fn higher_bands_go_first_and_keep_what_they_need() {
    let world = World::new(&[2]);
    assert!(world.enter(0, &[1], 0));
    assert!(!world.enter(1, &[2], 1));
    assert!(!world.enter(0, &[1], 2), "a unit of a higher band is taken");
    assert!(!world.enter(2, &[2], 3));
    assert_eq!(world.give_back(&[1]), [3]);
    assert_eq!(world.give_back(&[2]), [1]);
    assert_eq!(world.give_back(&[2]), [2]);
}

#[test]
fn nothing_is_kept_while_a_holder_waits() {
    let world = World::new(&[2]);
    assert!(world.enter(0, &[1], 0));
    assert!(!world.enter(1, &[2], 1) && !world.enter(0, &[1], 2));
    let admitted = Stock::hold_still(&world.needs(&[1]), true);
    assert_eq!(admitted.into_iter().map(|left| left.waiter).collect::<Vec<_>>(), [2]);
    assert!(Stock::hold_still(&world.needs(&[1]), false).is_empty());
    assert_eq!(world.give_back(&[1]), []);
    assert_eq!(world.give_back(&[1]), [1]);
}

#[test]
fn withdrawn_waiters_let_others_go_on() {
    let world = World::new(&[2]);
    assert!(world.enter(0, &[1], 0));
    let mut number = 0;
    let needs = world.needs(&[2]);
    assert!(matches!(Stock::enter(1, &needs, 1, |_| true, |given| number = given), Admission::Waits));
    assert!(!world.enter(0, &[1], 2));
    let left = Stock::withdraw(1, &needs, || number);
    assert_eq!(left.iter().map(|left| (left.waiter, left.is_admitted)).collect::<Vec<_>>(), [(1, false), (2, true)]);
    assert!(Stock::withdraw(1, &needs, || number).is_empty());
    assert!(!world.enter(0, &[1], 3));
    let left = world.0[0].withdraw_if(|&waiter| waiter == 3);
    assert_eq!(left.len(), 1);
    assert_eq!(world.taken(), [2]);
}

#[test]
fn units_taken_anyway_are_owed() {
    let world = World::new(&[1]);
    assert!(world.enter(0, &[1], 0));
    let (needs, mut number) = (world.needs(&[1]), 0);
    assert!(matches!(Stock::enter(9, &needs, 1, |_| true, |given| number = given), Admission::Waits));
    for _ in 0..2 {
        Stock::take_anyway(9, &needs, number);
        assert_eq!(world.taken(), [2]);
    }
    assert!(!world.enter(0, &[1], 2));
    assert_eq!(world.give_back(&[1]), []);
    assert_eq!(world.give_back(&[1]), [2]);
}

/// Waiters wait in several pools when these are joined.
#[test]
fn resources_that_are_needed_together_share_their_waiters() {
    let world = World::new(&[1, 1, 1]);
    for (at, units) in [[1, 0, 0], [0, 1, 0], [0, 0, 1]].iter().enumerate() {
        assert!(world.enter(0, units, 10 + at as u32) && !world.enter(0, units, at as u32));
    }
    assert!(!world.enter(0, &[1, 0, 1], 3) && !world.enter(0, &[0, 1, 1], 4));
    assert_eq!(world.give_back(&[1, 0, 0]), [0]);
    assert_eq!(world.give_back(&[0, 0, 1]), [2]);
    assert_eq!(world.give_back(&[1, 0, 0]), []);
    assert_eq!(world.give_back(&[0, 0, 1]), [3]);
    assert_eq!(world.give_back(&[1, 0, 1]), []);
    assert_eq!(world.give_back(&[0, 1, 0]), [1]);
    assert_eq!(world.give_back(&[0, 1, 0]), [4]);
}

/// Random needs of several resources: never are more units taken than there are, and every waiter is admitted.
#[test]
fn every_waiter_is_admitted() {
    let mut seed = 1u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    for _ in 0..200 {
        let units = [1 + random(3), 1 + random(3), 1 + random(8)];
        let world = World::new(&units);
        let (mut needs, mut running, mut done) = (Vec::new(), Vec::new(), 0);
        for waiter in 0..100 {
            let own: Vec<u64> = units.iter().map(|&units| random(units + 1)).collect();
            let is_admitted = world.enter(random(3) as u8, &own, waiter);
            needs.push(own);
            running.extend(is_admitted.then_some(waiter));
            while !running.is_empty() && random(2) == 0 {
                let ended = running.swap_remove(random(running.len() as u64) as usize);
                running.extend(world.give_back(&needs[ended as usize]));
                done += 1;
            }
            assert!(world.taken().iter().zip(&units).all(|(taken, units)| taken <= units));
        }
        while let Some(ended) = running.pop() {
            running.extend(world.give_back(&needs[ended as usize]));
            done += 1;
        }
        assert_eq!((done, world.taken()), (100, vec![0, 0, 0]));
    }
}
