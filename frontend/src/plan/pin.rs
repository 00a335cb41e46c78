//! The processors of `--pin`.

use super::PlanError;
use crate::cli::Axes;
use crate::cli::list::One;
use crate::scenario::Processors;

/// The processors, if some were given. This process must be allowed to use each of them.
pub(super) fn pin(axes: &Axes) -> Result<Option<Processors>, PlanError> {
    let Some(pin) = axes.pin.one() else { return Ok(None) };
    let refuse = |reason| Err(PlanError::new("--pin", reason));
    let Some(there) = platform::processors() else {
        return refuse("only Linux can keep a thread on a processor".to_owned());
    };
    match pin.numbers().iter().find(|number| !there.contains(number)) {
        Some(number) => {
            refuse(format!("there is no processor {number}, or this process may not use it; see nproc and taskset -p"))
        }
        None => Ok(Some(pin)),
    }
}
