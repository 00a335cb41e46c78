//! How evenly datagrams arrive.

use std::time::{Duration, Instant};

/// The interarrival jitter of a flow (RFC 3550, 6.4.1): how much the transit time of one arrival differs from that of the one
/// before it, smoothed. A datagram has no stamp, so its schedule stands for the time when it was sent: a sender that is late
/// counts, too.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Jitter {
    /// Of the last arrival, in seconds. Schedules may be ahead of the clock.
    transit: Option<f64>,
    estimate: f64,
    /// Of the estimates after each arrival.
    sum: f64,
    count: u64,
}

impl Jitter {
    /// Notes an arrival that was due to be sent at that time.
    pub(super) fn note(&mut self, due: Instant, arrived: Instant) {
        let late = arrived.saturating_duration_since(due).as_secs_f64();
        let transit = late - due.saturating_duration_since(arrived).as_secs_f64();
        if let Some(before) = self.transit.replace(transit) {
            self.estimate += ((transit - before).abs() - self.estimate) / 16.0;
            self.sum += self.estimate;
            self.count += 1;
        }
    }

    /// The mean of several flows; `None` without two arrivals in one of them.
    pub(super) fn mean(flows: impl Iterator<Item = Self>) -> Option<Duration> {
        let (sum, count) = flows.fold((0.0, 0), |(sum, count), flow| (sum + flow.sum, count + flow.count));
        (count > 0).then(|| Duration::from_secs_f64(sum / count as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrivals after so many milliseconds, of datagrams that were due every 10 ms.
    fn flow(arrivals: &[u64]) -> Jitter {
        let begin = Instant::now();
        let mut jitter = Jitter::default();
        for (number, after) in (0..).zip(arrivals) {
            jitter.note(begin + Duration::from_millis(10 * number), begin + Duration::from_millis(*after));
        }
        jitter
    }

    fn milliseconds(flows: &[&[u64]]) -> Option<f64> {
        Jitter::mean(flows.iter().map(|arrivals| flow(arrivals))).map(|jitter| jitter.as_secs_f64() * 1e3)
    }

    #[test]
    fn the_jitter_is_the_smoothed_difference_of_transit_times() {
        for (flows, expected) in [
            (&[&[][..], &[5]][..], None),
            (&[&[5, 15, 25, 35]], Some(0.0)),
            // J = 8/16, then 0.5 + (8 - 0.5)/16 = 0.96875.
            (&[&[5, 23, 25]], Some(0.734_375)),
            (&[&[5, 23, 25], &[5, 15, 25]], Some(0.367_187_5)),
            // An arrival before the due time of another clock.
            (&[&[0, 2]], Some(0.5)),
        ] {
            let found = milliseconds(flows);
            let is_near = found.zip(expected).is_none_or(|(found, expected)| (found - expected).abs() < 1e-5);
            assert!(is_near && found.is_some() == expected.is_some(), "{flows:?}: {found:?}");
        }
    }

    #[test]
    fn an_even_flow_in_the_end_has_the_jitter_of_its_differences() {
        let arrivals: Vec<_> = (0..1000).map(|number| 10 * number + 4 * (number % 2)).collect();
        let found = milliseconds(&[&arrivals]);
        assert!(found.is_some_and(|found| (3.9..=4.0).contains(&found)), "{found:?}");
    }
}
