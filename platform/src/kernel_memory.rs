//! The memory that the kernel takes for sockets: it is of no process.

use std::collections::BTreeMap;

/// The objects in the caches of the kernel, whoever they are for (`/proc/slabinfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelObjects {
    /// The objects of each cache in use, and the length of one in bytes.
    caches: BTreeMap<String, (u64, u64)>,
}

impl KernelObjects {
    /// Reads the table; `None` if it has no line of a cache. A line begins with its name, the objects in use, all objects, and
    /// the length of one (`slabinfo(5)`).
    pub fn parse(table: &str) -> Option<Self> {
        let cache = |line: &str| {
            let mut words = line.split_whitespace();
            let (name, active) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
            Some((name, (active, words.nth(1)?.parse().ok()?)))
        };
        let caches: BTreeMap<_, _> = table.lines().filter_map(cache).collect();
        (!caches.is_empty()).then_some(Self { caches })
    }

    /// The memory of the objects of one pair of sockets, in bytes, by readings between which this many pairs were opened. Others open
    /// and close sockets meanwhile, and a processor keeps free objects: so each cache has its median growth, in whole objects of a
    /// pair.
    pub fn bytes_of_pair(readings: &[Self], pairs: u64) -> u64 {
        let Some(last) = readings.last() else { return 0 };
        let bytes = last.caches.iter().map(|(name, (_, len))| {
            let active = |reading: &Self| reading.caches.get(name).map_or(0, |(active, _)| *active);
            let grown = |two: &[Self]| active(&two[1]).saturating_sub(active(&two[0]));
            let mut grown: Vec<_> = readings.windows(2).map(grown).collect();
            grown.sort_unstable();
            let median = grown.get(grown.len() / 2).copied().unwrap_or(0);
            (median.saturating_add(pairs / 2) / pairs.max(1)).saturating_mul(*len)
        });
        bytes.fold(0, u64::saturating_add)
    }
}

/// The sockets of a network that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCount {
    /// Those of TCP that are bound or connected.
    pub tcp: u64,
    /// Those of UDP that are bound.
    pub udp: u64,
}

impl SocketCount {
    /// Reads the tables of both versions of IP (`/proc/net/sockstat` and `sockstat6`). A line is `TCP: inuse 3 …` or `TCP6: inuse 3`.
    pub fn parse(table: &str) -> Self {
        let count = |protocol: &str| {
            let of_line = |line: &str| {
                let (name, rest) = line.split_once(": inuse ")?;
                let is_wanted = name.strip_suffix('6').unwrap_or(name) == protocol;
                rest.split_whitespace().next().filter(|_| is_wanted)?.parse().ok()
            };
            table.lines().filter_map(of_line).fold(0, u64::saturating_add)
        };
        Self { tcp: count("TCP"), udp: count("UDP") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_the_objects_that_most_rounds_agree_on() {
        let table = |tcp: u64, dentry: u64, vma: u64| {
            let head = "slabinfo - version: 2.1\n# name            <active_objs> <num_objs> <objsize> <objperslab>\n";
            let tail = "1 : tunables 0 0 0 : slabdata 9 9 0";
            let lines = [("TCP", tcp, 2368), ("dentry", dentry, 192), ("vma", vma, 100)];
            let lines = lines.map(|(name, active, len)| format!("{name} {active} 9999 {len} 13 {tail}\n"));
            KernelObjects::parse(&format!("{head}{}", lines.concat())).unwrap()
        };
        // Others open 3000 sockets in the second round, and close as many in the fourth.
        let readings =
            [table(10, 500, 70), table(205, 601, 119), table(3410, 701, 168), table(3611, 800, 217), table(800, 9, 9)];
        assert_eq!(KernelObjects::bytes_of_pair(&readings, 100), 2 * 2368 + 192, "49 for 100 are others'");
        assert_eq!(KernelObjects::bytes_of_pair(&readings[..1], 100), 0);
        assert_eq!(KernelObjects::bytes_of_pair(&[], 0), 0);
        for wrong in ["", "slabinfo - version: 2.1\n", "TCP x 1 2\nUDP 1\nA -1 2 3\nB 1 2 -3\n"] {
            assert_eq!(KernelObjects::parse(wrong), None, "{wrong:?}");
        }
        let most = KernelObjects::parse(&format!("TCP {0} {0} {0}", u64::MAX)).unwrap();
        assert_eq!(KernelObjects::bytes_of_pair(&[readings[0].clone(), most], 1), u64::MAX);
    }

    #[test]
    fn sockets_of_both_versions_of_ip_count() {
        let table = "sockets: used 13\nTCP: inuse 3 orphan 9 tw 0 alloc 4 mem 1\nUDP: inuse 2 mem 0\nUDPLITE: inuse 7\n\
                     TCP6: inuse 4\nUDP6: inuse 1\nUDPLITE6: inuse 7\nRAW6: inuse 7\n";
        assert_eq!(SocketCount::parse(table), SocketCount { tcp: 7, udp: 3 });
        assert_eq!(SocketCount::parse("TCP: inuse\nTCP: inuse x\nUDP: inuse -1"), SocketCount::default());
    }
}
