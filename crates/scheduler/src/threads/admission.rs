//! A client's request that was accepted. All of its parts are worked on, also while the server is being stopped.

use std::sync::Arc;

use super::queue::Queue;
use crate::request::Refusal;

/// Lets the parts of a request in until it is dropped. A queue that is closed gives no more of these, and its model
/// threads work until the last one has gone.
pub struct Admission {
    queue: Arc<Queue>,
}

impl Admission {
    pub(super) fn new(queue: &Arc<Queue>) -> Result<Self, Refusal> {
        queue.enter()?;
        Ok(Self { queue: Arc::clone(queue) })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.queue.leave();
    }
}
