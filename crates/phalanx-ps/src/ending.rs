//! How a run ends: who has to judge and save its result, and when a ps may go.

use crate::membership::Membership;
use std::time::{Duration, Instant};

/// How long a ps stays after the end for workers that have not heard of it, within the five seconds in
/// which every task ends after the chief.
const LINGER: Duration = Duration::from_secs(3);
/// How long a ps that nobody is connected to keeps a result that nobody has saved.
const UNSAVED: Duration = Duration::from_secs(600);

/// The end of a run, as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    over: bool,
    saved: bool,
    // Who has the chief's duties since the end. It keeps them, whoever comes or goes, until it leaves.
    finisher: Option<usize>,
}

/// Whether a ps may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayGo {
    /// There is something left to do.
    No,
    /// All is done.
    Done,
    /// The run is over, but nobody came to save its result.
    Unsaved,
}

impl Ending {
    pub fn is_over(&self) -> bool {
        self.over
    }

    pub fn is_saved(&self) -> bool {
        self.saved
    }

    /// The last step is done.
    pub fn set_over(&mut self, members: &Membership) {
        self.over = true;
        self.assign(members);
    }

    /// A worker has saved the result.
    pub fn set_saved(&mut self) {
        self.saved = true;
        self.finisher = None;
    }

    /// A worker came or left.
    pub fn assign(&mut self, members: &Membership) {
        if self.over && !self.saved && !self.finisher.is_some_and(|worker| members.is_here(worker)) {
            self.finisher = members.first();
        }
    }

    /// The worker that has the chief's duties.
    pub fn chief(&self, members: &Membership) -> Option<usize> {
        if self.over { self.finisher } else { members.first() }
    }

    /// Whether a ps may go: the run is over and saved, the workers are gone, and all of them know, or those that
    /// do not have had time to ask.
    pub fn may_go(&self, members: &Membership, now: Instant) -> MayGo {
        let alone = now.duration_since(members.empty_since);
        match self {
            _ if !self.over || !members.is_empty() => MayGo::No,
            Self { saved: true, .. } if members.all_told() || alone >= LINGER => MayGo::Done,
            Self { saved: false, .. } if alone >= UNSAVED => MayGo::Unsaved,
            _ => MayGo::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Member;

    fn member() -> Member {
        Member { incarnation: 1, origin: "a test".into() }
    }

    #[test]
    fn the_one_who_was_chief_at_the_end_saves_unless_it_is_lost() {
        let now = Instant::now();
        let mut members = Membership::new(3, now);
        let first = members.join(1, member()).unwrap();
        members.join(2, member()).unwrap();
        let mut ending = Ending::default();
        assert_eq!(ending.chief(&members), Some(1));
        ending.set_over(&members);
        members.join(0, member()).unwrap();
        ending.assign(&members);
        assert_eq!(ending.chief(&members), Some(1), "a late worker 0 does not take over what is under way");
        members.leave(first, now);
        ending.assign(&members);
        assert_eq!(ending.chief(&members), Some(0));
        ending.set_saved();
        ending.assign(&members);
        assert_eq!(ending.chief(&members), None, "once is enough");
    }

    #[test]
    fn a_ps_stays_for_the_ignorant_a_little_and_for_the_result_long() {
        let now = Instant::now();
        let mut members = Membership::new(2, now);
        let mut ending = Ending::default();
        assert_eq!(ending.may_go(&members, now + UNSAVED), MayGo::No, "not over");
        let chief = members.join(0, member()).unwrap();
        ending.set_over(&members);
        members.told(0);
        assert_eq!(ending.may_go(&members, now + UNSAVED), MayGo::No, "the chief is here");
        members.leave(chief, now);
        assert_eq!(ending.may_go(&members, now + LINGER), MayGo::No, "it left without saving");
        assert_eq!(ending.may_go(&members, now + UNSAVED), MayGo::Unsaved);
        ending.set_saved();
        assert_eq!(ending.may_go(&members, now), MayGo::No, "worker 1 does not know");
        assert_eq!(ending.may_go(&members, now + LINGER), MayGo::Done);
        members.told(1);
        assert_eq!(ending.may_go(&members, now), MayGo::Done);
    }
}
