//! Which workers are here.

use std::{fmt, time::Instant};

/// One life of a worker, as it introduced itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub incarnation: u64,
    pub origin: String,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (incarnation {})", self.origin, self.incarnation)
    }
}

/// One connection's hold on a worker's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub worker: usize,
    number: u64,
}

/// The workers of the cluster, by index.
#[derive(Debug)]
pub(crate) struct Membership {
    workers: Vec<Seat>,
    // Connections let in so far.
    tickets: u64,
    /// When the last of them left, if nobody is here.
    pub empty_since: Instant,
}

#[derive(Debug, Default)]
struct Seat {
    taken_by: Option<(Member, Ticket)>,
    // Has been told that the run is over.
    told: bool,
}

impl Membership {
    pub fn new(workers: usize, now: Instant) -> Self {
        Self { workers: (0..workers).map(|_| Seat::default()).collect(), tickets: 0, empty_since: now }
    }

    /// Takes a worker in, unless another one with its index is here. A worker that is here already comes anew
    /// because its connection broke, whether or not that was noticed on this side: the new one counts.
    pub fn join(&mut self, worker: usize, member: Member) -> Result<Ticket, String> {
        let count = self.workers.len();
        let Some(seat) = self.workers.get_mut(worker) else {
            return Err(format!("there is no worker {worker}: the cluster has {count}"));
        };
        if let Some((here, _)) =
            seat.taken_by.as_ref().filter(|(here, _)| here.incarnation != member.incarnation)
        {
            return Err(format!(
                "worker {worker} is already here, as {here}; {member} cannot be worker {worker} too: \
                 give each worker its own --task_index"
            ));
        }
        self.tickets += 1;
        let ticket = Ticket { worker, number: self.tickets };
        seat.taken_by = Some((member, ticket));
        Ok(ticket)
    }

    /// Whether this connection is the one that counts.
    pub fn holds(&self, ticket: Ticket) -> bool {
        let seat = self.workers.get(ticket.worker).and_then(|seat| seat.taken_by.as_ref());
        seat.is_some_and(|(_, held)| *held == ticket)
    }

    /// Takes a worker out; says whether it was here by this connection.
    pub fn leave(&mut self, ticket: Ticket, now: Instant) -> bool {
        let held = self.holds(ticket);
        if let Some(seat) = self.workers.get_mut(ticket.worker).filter(|_| held) {
            seat.taken_by = None;
            if self.is_empty() {
                self.empty_since = now;
            }
        }
        held
    }

    /// Whether a worker is here.
    pub fn is_here(&self, worker: usize) -> bool {
        self.workers.get(worker).is_some_and(|seat| seat.taken_by.is_some())
    }

    /// The one with the lowest index of those who are here.
    pub fn first(&self) -> Option<usize> {
        self.workers.iter().position(|seat| seat.taken_by.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// The workers that are not here.
    pub fn missing(&self) -> impl Iterator<Item = usize> {
        self.workers.iter().enumerate().filter(|(_, seat)| seat.taken_by.is_none()).map(|(index, _)| index)
    }

    /// The worker was told that the run is over.
    pub fn told(&mut self, worker: usize) {
        if let Some(seat) = self.workers.get_mut(worker) {
            seat.told = true;
        }
    }

    /// Whether every worker of the cluster was told that the run is over.
    pub fn all_told(&self) -> bool {
        self.workers.iter().all(|seat| seat.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(incarnation: u64) -> Member {
        Member { incarnation, origin: format!("pid {incarnation} on here") }
    }

    #[test]
    fn the_first_of_those_who_are_here_is_the_lowest() {
        let now = Instant::now();
        let mut members = Membership::new(3, now);
        assert_eq!(members.first(), None);
        members.join(2, member(1)).unwrap();
        assert_eq!(members.first(), Some(2));
        let ticket = members.join(0, member(2)).unwrap();
        assert_eq!(members.first(), Some(0));
        members.leave(ticket, now);
        assert_eq!(members.first(), Some(2));
        assert_eq!(members.missing().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn an_index_can_be_taken_once_and_again_after_it_is_free() {
        let now = Instant::now();
        let mut members = Membership::new(1, now);
        let first = members.join(0, member(1)).unwrap();
        let refusal = members.join(0, member(2)).unwrap_err();
        assert!(refusal.contains("pid 1 on here") && refusal.contains("pid 2 on here"), "{refusal}");
        members.leave(first, now);
        members.join(0, member(2)).unwrap();
        assert!(members.join(1, member(3)).unwrap_err().contains("no worker 1"));
    }

    #[test]
    fn a_worker_whose_connection_broke_unnoticed_takes_its_seat_again() {
        let now = Instant::now();
        let mut members = Membership::new(1, now);
        let broken = members.join(0, member(1)).unwrap();
        let anew = members.join(0, member(1)).unwrap();
        assert!(!members.holds(broken) && members.holds(anew));
        assert!(!members.leave(broken, now), "what is left of the broken one does not take out the new one");
        assert!(members.leave(anew, now) && members.is_empty());
    }
}
