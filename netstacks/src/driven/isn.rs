//! Initial sequence numbers (RFC 6528, 3): a clock and a secret hash of both addresses.

use std::hash::{BuildHasher, RandomState};

use tokio::time::Instant;

use crate::FlowKey;

pub(crate) struct InitialNumbers {
    epoch: Instant,
    secret: RandomState,
}

impl InitialNumbers {
    pub(crate) fn new(now: Instant) -> Self {
        Self { epoch: now, secret: RandomState::new() }
    }

    /// The initial sequence number of a connection that opens now. The clock ticks every four microseconds.
    pub(crate) fn of(&self, key: &FlowKey, now: Instant) -> u32 {
        let clock = now.saturating_duration_since(self.epoch).as_micros() / 4;
        (clock as u32).wrapping_add(self.secret.hash_one(key) as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_grow_with_time_and_differ_between_connections() {
        let now = Instant::now();
        let numbers = InitialNumbers::new(now);
        let [first, second] =
            [1, 2].map(|port| FlowKey { local: "10.0.0.2:80".parse().unwrap(), peer: ([10, 0, 0, 1], port).into() });
        let later = now + Duration::from_micros(400);
        assert_eq!(numbers.of(&first, later).wrapping_sub(numbers.of(&first, now)), 100);
        assert_ne!(numbers.of(&first, now), numbers.of(&second, now));
        assert_ne!(numbers.of(&first, now), InitialNumbers::new(now).of(&first, now));
    }
}
