//! Latencies of requests.

use std::fmt;
use std::io::Read as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer as Decoder, Serializer as _, V2DeflateSerializer as Encoder};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The smallest and the largest latency that the histogram tells apart, in nanoseconds.
const BOUNDS: [u64; 2] = [1, 100_000_000_000];

/// A value is off by less than a thousandth.
const DIGITS: u8 = 3;

/// The latencies of all requests of a run, or of several: a histogram (hdrhistogram).
#[derive(Clone, PartialEq)]
pub struct Latency(Histogram<u64>);

/// How many requests have to be slower than a percentile: p99 of a hundred requests would be the slowest of them.
const FEWEST_BEYOND: f64 = 10.0;

/// Latencies in a file: the quantiles are for people. This program reads only the histogram, which most files of docs/data lack.
#[derive(Serialize, Deserialize)]
pub(super) struct Fields {
    p50_us: Option<f64>,
    p90_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    max_us: Option<f64>,
    #[serde(default)]
    histogram: String,
}

impl Latency {
    /// Adds a request.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Forgets all requests.
    pub fn reset(&mut self) {
        self.0.reset();
    }

    /// Adds the requests of another run.
    pub fn add(&mut self, other: &Self) {
        // The bounds are equal, unless another program wrote the file. Then the histogram grows.
        self.0.auto(true);
        let _beyond = self.0.add(&other.0);
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time within which this share of the requests was answered, in microseconds, with ten that took longer. The share of 1 is
    /// the longest. `None` with fewer, and without requests.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        // The difference from 1 may be a little less than it should.
        let is_known = (1.0 - share) * self.count() as f64 > FEWEST_BEYOND - 1e-6 || share >= 1.0;
        let time = || self.0.value_at_quantile(share).min(self.0.max()) as f64 / 1000.0;
        (self.count() > 0 && is_known).then(time)
    }
}

impl Default for Latency {
    fn default() -> Self {
        let [low, high] = BOUNDS;
        // The bounds and the digits are in the crate's range.
        let histogram = Histogram::new_with_bounds(low, high, DIGITS).or_else(|_| Histogram::new(DIGITS));
        Self(histogram.unwrap_or_else(|_| unreachable!("three digits are within the range of the crate")))
    }
}

impl fmt::Debug for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantiles = [0.5, 0.9, 0.99, 0.999, 1.0].map(|share| self.quantile_us(share));
        f.debug_struct("Latency").field("count", &self.count()).field("quantiles_us", &quantiles).finish()
    }
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quantile = |share| self.quantile_us(share);
        let mut bytes = Vec::new();
        Encoder::new().serialize(&self.0, &mut bytes).map_err(serde::ser::Error::custom)?;
        let fields = Fields {
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: quantile(1.0),
            histogram: STANDARD.encode(bytes),
        };
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Latency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        if fields.histogram.is_empty() {
            return Ok(Self::default());
        }
        let bytes = STANDARD.decode(fields.histogram).map_err(D::Error::custom)?;
        if !is_bounded(&bytes) {
            return Err(D::Error::custom("the histogram has more digits or counts than this program writes"));
        }
        let histogram = Decoder::new().deserialize(&mut bytes.as_slice()).map_err(D::Error::custom)?;
        Ok(Self(histogram))
    }
}

/// Most bytes of a histogram's counts before compression.
const MAX_COUNTS: u32 = 1 << 20;

/// Whether a histogram is no larger than ours: the crate believes its head, and takes gigabytes for a small file. Before
/// the deflated bytes are a cookie and a length; they begin with a cookie, the length of the counts, an offset, the digits.
fn is_bounded(bytes: &[u8]) -> bool {
    let mut head = [0; 16];
    let is_whole = bytes.get(8..).is_some_and(|deflated| ZlibDecoder::new(deflated).read_exact(&mut head).is_ok());
    let [_, counts, _, digits] = [0, 4, 8, 12].map(|at| {
        let [a, b, c, d] = [head[at], head[at + 1], head[at + 2], head[at + 3]];
        u32::from_be_bytes([a, b, c, d])
    });
    is_whole && counts <= MAX_COUNTS && digits <= DIGITS.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_with_a_large_histogram_is_refused() {
        let histogram = Histogram::<u64>::new_with_bounds(1, u64::MAX / 2, 5).unwrap();
        let mut fields = serde_json::to_value(Latency::default()).unwrap();
        for (histogram, is_read) in [(&histogram, false), (&Latency::default().0, true)] {
            let mut bytes = Vec::new();
            Encoder::new().serialize(histogram, &mut bytes).unwrap();
            fields["histogram"] = STANDARD.encode(bytes).into();
            assert_eq!(serde_json::from_value::<Latency>(fields.clone()).is_ok(), is_read);
        }
        fields["histogram"] = STANDARD.encode([0x1c; 9]).into();
        assert!(serde_json::from_value::<Latency>(fields.clone()).is_err());
        fields.as_object_mut().unwrap().remove("histogram");
        assert_eq!(serde_json::from_value::<Latency>(fields).unwrap().count(), 0);
    }

    #[test]
    fn quantiles_are_right_to_a_thousandth_and_survive_a_file() {
        let mut latency = Latency::default();
        assert_eq!([0.5, 1.0].map(|share| latency.quantile_us(share)), [None; 2]);
        for microseconds in 1..=1000 {
            latency.record(Duration::from_micros(microseconds));
        }
        for (share, expected) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (1.0, 1000.0)] {
            let quantile = latency.quantile_us(share).unwrap();
            assert!((quantile / expected - 1.0).abs() < 0.001, "{share}: {quantile}");
        }
        let text = serde_json::to_string(&latency).unwrap();
        assert!(text.len() < 4000, "{} bytes", text.len());
        let read: Latency = serde_json::from_str(&text).unwrap();
        assert_eq!(read.count(), 1000);
        // Nine are slower than 99.1 %, and one than 99.9 %.
        assert_eq!([0.991, 0.999].map(|share| latency.quantile_us(share)), [None; 2]);
        assert!(text.contains("\"p999_us\":null"), "{text}");
        assert_eq!(read.quantile_us(0.99), latency.quantile_us(0.99));
    }

    #[test]
    fn runs_are_merged_request_by_request() {
        let [mut one, mut other] = [Latency::default(), Latency::default()];
        (0..999).for_each(|_| one.record(Duration::from_micros(10)));
        other.record(Duration::from_secs(200));
        one.add(&other);
        assert_eq!(one.count(), 1000);
        assert!(one.quantile_us(0.99).unwrap() < 11.0);
        // A latency above the bounds counts as the upper bound.
        assert!((one.quantile_us(1.0).unwrap() / 100e6 - 1.0).abs() < 0.5);
    }
}
