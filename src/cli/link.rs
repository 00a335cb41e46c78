//! What the link does to packets.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::Args;

use super::load::optional;
use super::{list, values};

/// The conditions of the link of a run.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Conditions of the link between device and stack, each way")]
pub struct Link {
    /// How long every packet takes, such as 5ms: half of what it adds to a round trip
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::delay)]
    pub delay: Duration,

    /// Up to this much more or less, evenly distributed
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::delay, hide_short_help = true)]
    pub jitter: Duration,

    /// Packets that are lost
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = values::share)]
    pub loss: u32,

    /// Packets that the next three overtake
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = values::share, hide_short_help = true)]
    pub reorder: u32,

    /// Packets that come twice
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = values::share, hide_short_help = true)]
    pub duplicate: u32,

    /// Packets of which a bit is changed; without offload
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = values::share, hide_short_help = true)]
    pub corrupt: u32,

    /// Bits a second at most, such as 100M
    #[arg(long, value_name = "BITRATE", value_parser = values::rate, hide_short_help = true)]
    pub rate_limit: Option<NonZeroU64>,

    /// Seed of all chance on the link; the same seed drops the same packets of the same traffic
    #[arg(long, value_name = "N", default_value_t = 1, hide_short_help = true)]
    pub link_seed: u64,
}

/// Lists of conditions for a matrix.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Conditions of the link between device and stack, each way")]
pub struct LinkLists {
    /// How long every packet takes, such as 5ms: half of what it adds to a round trip
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = values::delay)]
    pub delay: Vec<Duration>,

    /// Up to this much more or less, evenly distributed
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = values::delay, hide_short_help = true)]
    pub jitter: Vec<Duration>,

    /// Packets that are lost, in percent
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = values::share)]
    pub loss: Vec<u32>,

    /// Packets that the next three overtake, in percent
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = values::share, hide_short_help = true)]
    pub reorder: Vec<u32>,

    /// Packets that come twice, in percent
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = values::share, hide_short_help = true)]
    pub duplicate: Vec<u32>,

    /// Packets of which a bit is changed, in percent; without offload
    #[arg(long, value_name = "LIST", default_value = "0", value_delimiter = ',', value_parser = values::share, hide_short_help = true)]
    pub corrupt: Vec<u32>,

    /// Bits a second at most, such as 100M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::rate, hide_short_help = true)]
    pub rate_limit: Vec<NonZeroU64>,

    /// Seed of all chance on the link in the first round; the next round has the next seed
    #[arg(long, value_name = "N", default_value_t = 1, hide_short_help = true)]
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
