//! The hosts that a client has sent to.

use std::collections::HashSet;
use std::mem;
use std::net::IpAddr;

/// Addresses of a client's servers. It knows at least the last [`Self::GENERATION`], and those before for a time.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    /// Most datagrams go to the server of the one before.
    last: Option<IpAddr>,
    recent: HashSet<IpAddr>,
    earlier: HashSet<IpAddr>,
}

impl Contacts {
    /// As many as fill a table of 1,024 places.
    const GENERATION: usize = 896;

    /// The most that it takes. A place has one byte more than an address.
    pub(super) const MAX_BYTES: usize = 2 * 1024 * (size_of::<IpAddr>() + 1);

    pub(super) fn add(&mut self, address: IpAddr) {
        if self.last.replace(address) != Some(address)
            && self.recent.insert(address)
            && self.recent.len() >= Self::GENERATION
        {
            self.earlier = mem::take(&mut self.recent);
        }
    }

    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.last == Some(address) || self.recent.contains(&address) || self.earlier.contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_many_servers_takes_no_more_than_the_bound() {
        let address = |number: usize| IpAddr::from((number as u32).to_be_bytes());
        let mut contacts = Contacts::default();
        for number in 0..100_000 {
            contacts.add(address(number));
            assert!(contacts.contain(address(number)) && !contacts.contain(address(number + 1)));
            assert!(contacts.contain(address(number.saturating_sub(Contacts::GENERATION - 1))));
            let places = contacts.recent.capacity() + contacts.earlier.capacity();
            assert!(places <= 2 * Contacts::GENERATION, "{places} places");
        }
        assert!(!contacts.contain(address(0)));
    }
}
