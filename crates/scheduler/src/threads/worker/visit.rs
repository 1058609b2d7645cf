//! How an HTTP thread enters a parked loop: it submits its request, and answers it if the prefix cache has all of its
//! nodes.

use super::super::parking::Parked;
use super::Loop;
use crate::request::Request;

/// Rounds that a search may take on an HTTP thread, each for one distribution and a few microseconds: more
/// than the ten beams and sixteen tokens of a default request. Other clients of that thread wait meanwhile.
const ROUNDS: usize = 256;

impl Loop {
    /// Takes a request on an HTTP thread, and answers it if the prefix cache has all that it needs.
    /// Otherwise the model thread goes on with it.
    pub(in crate::threads) fn visit(&mut self, request: Request) {
        let flow = request.flow;
        let job = self.start(request, false);
        if self.worker.scheduler.replay(job, ROUNDS) {
            self.send_events();
            self.finish(job);
        } else if let Some(active) = self.active.last_mut() {
            active.is_accounted = true;
            self.worker.queue.begins(flow);
        }
        // A model thread that waits with a limit begins the lookahead by itself.
        let has_lookahead = self.lookahead.pending() != super::Pending::Nothing;
        let has_work = !self.active.is_empty() || (has_lookahead && self.waits_forever);
        if has_work && !std::mem::replace(&mut self.called, true) {
            self.worker.queue.call(self.worker.replica);
        }
    }
}

impl Parked for Loop {
    fn has_room(&self) -> bool {
        self.broken.is_none() && self.room().interactive
    }

    fn has_panicked(&mut self) {
        self.broken = Some(self.panicked());
        self.worker.queue.call(self.worker.replica);
    }
}
