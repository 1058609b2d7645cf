//! Start-time fair queueing by computed positions. Pure: no clock, and no requests.
//!
//! Each flow has an account: the positions that were computed for it, in virtual time. The flow with the least is
//! served next. Virtual time is the account of the flow that was taken last. A flow that comes back begins there, so
//! that nobody saves up for later, and whoever used more than the others waits until they have used as much.

use rustc_hash::FxHashMap;

use super::client::{Class, Flow};

/// Positions that a running request counts for until they are computed: those of an ordinary keystroke.
const EXPECTED: u64 = 32;

/// Accounts that are kept before those of flows without requests are cleared away.
const SWEEP_AT: usize = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Virtual time: where the flow began, and the positions computed for it since.
    used: u64,
    waiting: usize,
    running: usize,
}

impl Account {
    fn is_idle(self) -> bool {
        self.waiting + self.running == 0
    }
}

/// The accounts of all flows. See the module's documentation.
#[derive(Debug, Default)]
pub struct Fair {
    accounts: FxHashMap<Flow, Account>,
    interactive: Era,
    bulk: Era,
}

/// The virtual time of one class, and the number of its requests.
#[derive(Debug, Default)]
struct Era {
    now: u64,
    requests: usize,
}

impl Fair {
    /// A request of a flow waits.
    pub fn waits(&mut self, flow: Flow) {
        self.joins(flow).waiting += 1;
    }

    /// A request that waited has gone.
    pub fn withdrawn(&mut self, flow: Flow) {
        self.leaves(flow, |account| account.waiting -= 1);
    }

    /// A request that waited runs.
    pub fn taken(&mut self, flow: Flow) {
        let Some(account) = self.accounts.get_mut(&flow) else { return };
        (account.waiting, account.running) = (account.waiting - 1, account.running + 1);
        let used = account.used;
        let era = self.era(flow.class);
        era.now = era.now.max(used);
    }

    /// A request runs that never waited.
    pub fn begins(&mut self, flow: Flow) {
        self.joins(flow).running += 1;
    }

    /// A running request has ended.
    pub fn ends(&mut self, flow: Flow) {
        self.leaves(flow, |account| account.running -= 1);
    }

    /// Positions were computed for a flow.
    pub fn charge(&mut self, flow: Flow, positions: usize) {
        if let Some(account) = self.accounts.get_mut(&flow) {
            account.used += positions as u64;
        }
    }

    /// Whose turn it is: the lower, the sooner.
    pub fn rank(&self, flow: Flow) -> u64 {
        let account = self.account(flow);
        account.used + account.running as u64 * EXPECTED
    }

    /// Requests of a flow that wait.
    pub fn waiting(&self, flow: Flow) -> usize {
        self.account(flow).waiting
    }

    /// Whether a flow has a running request.
    pub fn is_running(&self, flow: Flow) -> bool {
        self.account(flow).running > 0
    }

    /// The flow with the most waiting requests: among equals a bulk one, or else `newcomer`.
    pub fn largest(&self, newcomer: Flow) -> Flow {
        let place = |flow: Flow, account: &Account| (account.waiting, flow.class, flow == newcomer);
        let largest = self.accounts.iter().max_by_key(|&(&flow, account)| place(flow, account));
        largest.map_or(newcomer, |(&flow, _)| flow)
    }

    fn account(&self, flow: Flow) -> Account {
        self.accounts.get(&flow).copied().unwrap_or_default()
    }

    fn era(&mut self, class: Class) -> &mut Era {
        match class {
            Class::Interactive => &mut self.interactive,
            Class::Bulk => &mut self.bulk,
        }
    }

    fn joins(&mut self, flow: Flow) -> &mut Account {
        if self.accounts.len() >= SWEEP_AT && !self.accounts.contains_key(&flow) {
            // Who made up so many names has nothing to lose by it, and memory is bounded by the requests there are.
            self.accounts.retain(|_, account| !account.is_idle());
        }
        let era = self.era(flow.class);
        era.requests += 1;
        let now = era.now;
        let account = self.accounts.entry(flow).or_default();
        if account.is_idle() {
            account.used = account.used.max(now);
        }
        account
    }

    fn leaves(&mut self, flow: Flow, how: impl FnOnce(&mut Account)) {
        let Some(account) = self.accounts.get_mut(&flow) else { return };
        how(account);
        let era = self.era(flow.class);
        era.requests -= 1;
        if era.requests == 0 {
            // Nobody was kept waiting by what was used until now.
            era.now = 0;
            self.accounts.retain(|other, _| other.class != flow.class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;

    fn flow(name: &str) -> Flow {
        Flow { client: Client::session(name), class: Class::Interactive }
    }

    #[test]
    fn who_used_more_waits_and_who_comes_back_begins_at_the_present() {
        let mut fair = Fair::default();
        let (a, b) = (flow("a"), flow("b"));
        fair.waits(a);
        fair.taken(a);
        fair.charge(a, 1000);
        fair.waits(a);
        fair.waits(b);
        assert!(fair.rank(b) < fair.rank(a) && fair.is_running(a) && !fair.is_running(b));
        fair.taken(a);
        fair.withdrawn(b);
        fair.waits(b);
        assert_eq!((fair.rank(b), fair.waiting(b)), (1000, 1), "b has saved nothing up");
        fair.taken(b);
        [a, a, b].into_iter().for_each(|flow| fair.ends(flow));
        assert!(fair.accounts.is_empty() && fair.interactive.now == 0);
    }

    #[test]
    fn a_flow_of_the_other_class_has_its_own_account_and_is_the_first_to_lose_a_place() {
        let mut fair = Fair::default();
        let (typing, batch) = (flow("a"), Flow { class: Class::Bulk, ..flow("a") });
        fair.begins(batch);
        fair.charge(batch, 1000);
        [typing, batch].into_iter().for_each(|flow| fair.waits(flow));
        assert_eq!(fair.rank(typing), 0);
        assert_eq!(fair.largest(typing), batch);
        fair.waits(typing);
        assert_eq!(fair.largest(batch), typing);
    }

    #[test]
    fn made_up_names_take_no_memory_for_long() {
        let mut fair = Fair::default();
        let lasting = flow("lasting");
        fair.begins(lasting);
        fair.charge(lasting, 7);
        for name in 0..100_000 {
            let made_up = flow(&name.to_string());
            fair.begins(made_up);
            fair.charge(made_up, 100);
            fair.ends(made_up);
            assert!(fair.accounts.len() <= SWEEP_AT);
        }
        assert!(fair.is_running(lasting));
    }
}
