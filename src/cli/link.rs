//! What the link does to packets.

use std::num::NonZeroU64;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;

use super::list;
use super::load::optional;

/// The conditions of the link of a run.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Conditions of the link between device and stack, each way")]
pub struct Link {
    /// How long every packet takes, such as 5ms: half of what it adds to a round trip
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = time)]
    pub delay: Duration,

    /// Up to this much more or less, evenly distributed
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = time)]
    pub jitter: Duration,

    /// Packets that are lost
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = share)]
    pub loss: u32,

    /// Packets that the next three overtake
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = share)]
    pub reorder: u32,

    /// Packets that come twice
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = share)]
    pub duplicate: u32,

    /// Packets of which a bit is changed; without offload
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = share)]
    pub corrupt: u32,

    /// Bits a second at most, such as 100M
    #[arg(long, value_name = "BITRATE", value_parser = bitrate)]
    pub rate_limit: Option<NonZeroU64>,

    /// Seed of all chance on the link; the same seed drops the same packets of the same traffic
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub link_seed: u64,
}

/// Lists of conditions for a matrix.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Conditions of the link between device and stack, each way")]
pub struct LinkLists {
    /// How long every packet takes, such as 5ms: half of what it adds to a round trip
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = time)]
    pub delay: Vec<Duration>,

    /// Up to this much more or less, evenly distributed
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = time)]
    pub jitter: Vec<Duration>,

    /// Packets that are lost, in percent
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = share)]
    pub loss: Vec<u32>,

    /// Packets that the next three overtake, in percent
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = share)]
    pub reorder: Vec<u32>,

    /// Packets that come twice, in percent
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = share)]
    pub duplicate: Vec<u32>,

    /// Packets of which a bit is changed, in percent; without offload
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = share)]
    pub corrupt: Vec<u32>,

    /// Bits a second at most, such as 100M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bitrate)]
    pub rate_limit: Vec<NonZeroU64>,

    /// Seed of all chance on the link in the first round; the next round has the next seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub link_seed: u64,
}

impl LinkLists {
    /// Every combination, in the order of the lists.
    pub fn expand(&self) -> Vec<Link> {
        let mut links = vec![Link { link_seed: self.link_seed, ..Link::default() }];
        links = list::product(&links, &self.delay, |link, delay| Link { delay, ..link });
        links = list::product(&links, &self.jitter, |link, jitter| Link { jitter, ..link });
        links = list::product(&links, &self.loss, |link, loss| Link { loss, ..link });
        links = list::product(&links, &self.reorder, |link, reorder| Link { reorder, ..link });
        links = list::product(&links, &self.duplicate, |link, duplicate| Link { duplicate, ..link });
        links = list::product(&links, &self.corrupt, |link, corrupt| Link { corrupt, ..link });
        list::product(&links, &optional(&self.rate_limit), |link, rate_limit| Link { rate_limit, ..link })
    }
}

/// A time with its unit: `5ms`, `0.5s`, `200us`.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "not a time; write a number with a unit, such as 5ms, 200us or 0.1s".to_owned();
    let (number, unit) = text.split_at(text.find(|letter: char| letter.is_alphabetic()).unwrap_or(text.len()));
    let seconds = match (unit, number.trim().parse::<f64>().map_err(|_| wrong())?) {
        ("s", number) => number,
        ("ms", number) => number / 1e3,
        ("us" | "µs", number) => number / 1e6,
        ("", 0.0) => 0.0,
        _ => return Err(wrong()),
    };
    // Rounded to nanoseconds, the unit in files of samples.
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if time > Duration::from_mins(1) { Err("more than a minute".to_owned()) } else { Ok(time) }
}

/// A percentage, in parts per million.
fn share(text: &str) -> Result<u32, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.map(|percent| (percent * 1e4).round() as u32).ok_or_else(|| "must be from 0 to 100 percent".to_owned())
}

/// Bits a second with an SI suffix: `100M`, `1.5Gbit`.
pub(super) fn bitrate(text: &str) -> Result<NonZeroU64, String> {
    let number = text.trim_end_matches("bit/s").trim_end_matches("bit").trim_end_matches("bps");
    let rate = number.parse::<ByteSize>().ok().and_then(|rate| NonZeroU64::new(rate.as_u64()));
    rate.ok_or_else(|| "not a bit rate above 0; write a number with an SI suffix, such as 100M or 1G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_shares_and_rates_have_their_units() {
        assert_eq!(time("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(time("0.25s"), Ok(Duration::from_millis(250)));
        assert_eq!(time("200us"), Ok(Duration::from_micros(200)));
        assert_eq!(time("0"), Ok(Duration::ZERO));
        assert!(["5", "ms", "-1ms", "61s", "1h", ""].iter().all(|text| time(text).is_err()));
        assert_eq!([share("0.1"), share("100"), share("0")], [Ok(1000), Ok(1_000_000), Ok(0)]);
        assert!(["101", "-1", "x", "NaN"].iter().all(|text| share(text).is_err()));
        assert_eq!(bitrate("100M").map(NonZeroU64::get), Ok(100_000_000));
        assert_eq!(bitrate("1.5Gbit").map(NonZeroU64::get), Ok(1_500_000_000));
        assert!(["0", "fast", ""].iter().all(|text| bitrate(text).is_err()));
    }
}
