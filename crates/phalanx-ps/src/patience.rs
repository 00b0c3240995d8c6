//! Waiting for another task: growing pauses between attempts, and a word to the user now and then.

use std::{
    fmt,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Short waits are part of any start and go unmentioned.
const FIRST_REPORT: Duration = Duration::from_secs(1);
const BETWEEN_REPORTS: Duration = Duration::from_secs(10);

/// Whom a task waits for, where, why, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The tasks, with their addresses: `ps 0 at 10.0.0.1:2222`.
    pub whom: String,
    /// What happened at the last attempt, or what the other is expected to do.
    pub why: String,
    /// How long it has waited.
    pub so_far: Duration,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waiting for {} for {} s: {}", self.whom, self.so_far.as_secs(), self.why)
    }
}

/// One wait, from its beginning.
#[derive(Debug)]
pub(crate) struct Patience {
    since: Instant,
    pause: Duration,
    next_report: Instant,
}

impl Patience {
    pub fn new(now: Instant) -> Self {
        Self { since: now, pause: FIRST_PAUSE, next_report: now + FIRST_REPORT }
    }

    /// How long to pause before the next attempt: longer each time, up to a limit.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        pause
    }

    /// When the user is next to hear of this wait.
    pub fn next_report(&self) -> Instant {
        self.next_report
    }

    /// How long the wait has lasted, if it is time to say so.
    pub fn report(&mut self, now: Instant) -> Option<Duration> {
        (now >= self.next_report).then(|| {
            self.next_report = now + BETWEEN_REPORTS;
            now - self.since
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let mut patience = Patience::new(Instant::now());
        let pauses: Vec<_> = (0..20).map(|_| patience.next_pause()).collect();
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert!(pauses.is_sorted());
        assert_eq!(pauses[19], LONGEST_PAUSE);
    }

    #[test]
    fn the_user_hears_of_a_wait_after_a_second_and_then_every_ten() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        let said: Vec<u64> = (0..300)
            .filter_map(|tenths| patience.report(start + Duration::from_millis(tenths * 100)))
            .map(|so_far| so_far.as_secs())
            .collect();
        assert_eq!(said, [1, 11, 21]);
    }
}
