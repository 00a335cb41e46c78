//! A network interface and its addresses, through the IP Helper API.

use std::io;
use std::net::IpAddr;
use std::os::windows::io::AsRawSocket;
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;
use windows_sys::Win32::Foundation::{
    ERROR_FILE_NOT_FOUND, ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS, ERROR_SUCCESS, WIN32_ERROR,
};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceAliasToLuid, ConvertInterfaceLuidToIndex, CreateUnicastIpAddressEntry, GetIfEntry2,
    GetIpInterfaceEntry, GetUnicastIpAddressEntry, InitializeIpInterfaceEntry, InitializeUnicastIpAddressEntry,
    MIB_IF_ROW2, MIB_IPINTERFACE_ROW, MIB_UNICASTIPADDRESS_ROW, SetIpInterfaceEntry,
};
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;
use windows_sys::Win32::Networking::WinSock::{
    ADDRESS_FAMILY, AF_INET, AF_INET6, IN_ADDR, IN_ADDR_0, IN6_ADDR, IN6_ADDR_0, IP_UNICAST_IF, IPPROTO_IP,
    IPPROTO_IPV6, IPV6_UNICAST_IF, IpDadStateDuplicate, IpDadStatePreferred, SOCKADDR_IN, SOCKADDR_IN6, SOCKADDR_INET,
    SOCKET, setsockopt,
};

use crate::Network;

/// How long Windows may take until it knows a new interface, or until an address is usable.
const LIMIT: Duration = Duration::from_secs(10);

const INTERVAL: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
pub(super) struct Interface {
    luid: u64,
}

pub(super) fn exists(name: &str) -> bool {
    luid_of(name).is_some()
}

fn luid_of(name: &str) -> Option<NET_LUID_LH> {
    let name: Vec<u16> = name.encode_utf16().chain([0]).collect();
    let mut luid = NET_LUID_LH { Value: 0 };
    // SAFETY: the name ends with a zero, and `luid` is ours to write.
    let result = unsafe { ConvertInterfaceAliasToLuid(name.as_ptr(), &raw mut luid) };
    (result == ERROR_SUCCESS).then_some(luid)
}

/// Whether the interface with this name has the address.
pub(super) fn has_address(name: &str, address: IpAddr) -> bool {
    // SAFETY: all variants of the union are the same 64 bits.
    luid_of(name).is_some_and(|luid| Interface::new(unsafe { luid.Value }).row(address).is_ok())
}

/// Makes a socket send through the interface with this name (`IP_UNICAST_IF`, `IPV6_UNICAST_IF`).
pub fn bind_to_interface(socket: &Socket, name: &str, ipv6: bool) -> io::Result<()> {
    let index = index(name)?;
    // The value for IPv4 is in network byte order.
    let (level, option, value) =
        if ipv6 { (IPPROTO_IPV6, IPV6_UNICAST_IF, index) } else { (IPPROTO_IP, IP_UNICAST_IF, index.to_be()) };
    let value = value.to_ne_bytes();
    // SAFETY: the socket is open, and Windows reads as many bytes as `value` has.
    let result =
        unsafe { setsockopt(socket.as_raw_socket() as SOCKET, level, option, value.as_ptr(), value.len() as i32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn index(name: &str) -> io::Result<u32> {
    let luid = luid_of(name).ok_or(io::ErrorKind::NotFound)?;
    let mut index = 0;
    // SAFETY: `luid` came from Windows, and `index` is ours to write.
    check(unsafe { ConvertInterfaceLuidToIndex(&raw const luid, &raw mut index) })?;
    Ok(index)
}

impl Interface {
    pub(super) fn new(luid: u64) -> Self {
        Self { luid }
    }

    fn luid(self) -> NET_LUID_LH {
        NET_LUID_LH { Value: self.luid }
    }

    pub(super) fn set_mtu(self, mtu: u16, address: IpAddr) -> io::Result<()> {
        let mut row = MIB_IPINTERFACE_ROW::default();
        within(LIMIT, || {
            // SAFETY: the row is ours to write.
            unsafe { InitializeIpInterfaceEntry(&raw mut row) };
            row.Family = family(address);
            row.InterfaceLuid = self.luid();
            // SAFETY: as above.
            match unsafe { GetIpInterfaceEntry(&raw mut row) } {
                // Windows binds IP to a new interface a moment after its creation.
                ERROR_NOT_FOUND | ERROR_FILE_NOT_FOUND => Ok(None),
                code => check(code).map(Some),
            }
        })?;
        row.NlMtu = mtu.into();
        // No detection of duplicate addresses: there is no other host on this network.
        row.DadTransmits = 0;
        // For IPv4, `SetIpInterfaceEntry` refuses the value that `GetIpInterfaceEntry` returns.
        row.SitePrefixLength = 0;
        // SAFETY: the row is filled in.
        check(unsafe { SetIpInterfaceEntry(&raw mut row) })
    }

    /// The row of one of its addresses.
    fn row(self, address: IpAddr) -> io::Result<MIB_UNICASTIPADDRESS_ROW> {
        let (luid, address) = (self.luid(), socket_address(address));
        let mut row = MIB_UNICASTIPADDRESS_ROW { InterfaceLuid: luid, Address: address, ..Default::default() };
        // SAFETY: the row names the address, and is ours to write.
        check(unsafe { GetUnicastIpAddressEntry(&raw mut row) }).map(|()| row)
    }

    /// Gives the interface its address, and waits until it is usable. The prefix makes Windows add the route. An interface that is
    /// kept from run to run may have the address already.
    pub(super) fn add_address(self, network: &Network) -> io::Result<()> {
        let mut row = MIB_UNICASTIPADDRESS_ROW::default();
        // SAFETY: the row is ours to write. This makes its lifetimes infinite.
        unsafe { InitializeUnicastIpAddressEntry(&raw mut row) };
        row.InterfaceLuid = self.luid();
        row.Address = socket_address(network.address);
        row.OnLinkPrefixLength = network.prefix_len;
        row.SkipAsSource = false;
        row.DadState = IpDadStatePreferred;
        // SAFETY: the row is filled in.
        let is_there = match unsafe { CreateUnicastIpAddressEntry(&raw const row) } {
            ERROR_OBJECT_ALREADY_EXISTS => true,
            code => check(code).map(|()| false)?,
        };
        let text = "another interface has the address; choose others (--tun-addr, --tun-dest)";
        let taken = || io::Error::new(io::ErrorKind::AddrInUse, text);
        within(LIMIT, || {
            let row = self.row(network.address).map_err(|error| if is_there { taken() } else { error })?;
            match row.DadState {
                state if state == IpDadStatePreferred => Ok(Some(())),
                state if state == IpDadStateDuplicate => Err(taken()),
                _ => Ok(None),
            }
        })
    }

    pub(super) fn dropped_packets(self) -> Option<u64> {
        let mut row = MIB_IF_ROW2 { InterfaceLuid: self.luid(), ..MIB_IF_ROW2::default() };
        // SAFETY: the row names the interface, and is ours to write.
        check(unsafe { GetIfEntry2(&raw mut row) }).ok()?;
        Some(row.InDiscards + row.OutDiscards)
    }
}

/// Repeats a check until it returns a result.
pub(super) fn within(limit: Duration, mut ask: impl FnMut() -> io::Result<Option<()>>) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match ask()? {
            Some(()) => return Ok(()),
            None if Instant::now() < deadline => thread::sleep(INTERVAL),
            None => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Functions of IP Helper return their error code: they do not set the thread's last error.
fn check(code: WIN32_ERROR) -> io::Result<()> {
    if code == ERROR_SUCCESS { Ok(()) } else { Err(io::Error::from_raw_os_error(code.cast_signed())) }
}

fn family(address: IpAddr) -> ADDRESS_FAMILY {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn socket_address(address: IpAddr) -> SOCKADDR_INET {
    // The bytes in memory are in network byte order.
    match address {
        IpAddr::V4(address) => {
            let address = IN_ADDR { S_un: IN_ADDR_0 { S_addr: u32::from_ne_bytes(address.octets()) } };
            SOCKADDR_INET {
                Ipv4: SOCKADDR_IN { sin_family: AF_INET, sin_port: 0, sin_addr: address, sin_zero: [0; 8] },
            }
        }
        IpAddr::V6(address) => {
            let address = IN6_ADDR { u: IN6_ADDR_0 { Byte: address.octets() } };
            SOCKADDR_INET {
                Ipv6: SOCKADDR_IN6 { sin6_family: AF_INET6, sin6_addr: address, ..SOCKADDR_IN6::default() },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_lies_in_memory_as_on_the_wire() {
        let address = socket_address([10, 90, 0, 1].into());
        // SAFETY: the union was created as this variant, which has only integers.
        let (family, bits) = unsafe { (address.si_family, address.Ipv4.sin_addr.S_un.S_addr) };
        assert_eq!((family, bits.to_ne_bytes()), (AF_INET, [10, 90, 0, 1]));
        let octets = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        let address = socket_address(octets.into());
        // SAFETY: as above.
        let (family, bytes) = unsafe { (address.si_family, address.Ipv6.sin6_addr.u.Byte) };
        assert_eq!((family, bytes), (AF_INET6, octets));
    }

    #[test]
    fn an_interface_that_does_not_exist_is_neither_found_nor_counted() {
        assert!(!exists("no such interface"));
        assert_eq!(Interface::new(0).dropped_packets(), None);
    }

    #[test]
    fn a_wait_ends_with_the_condition_the_error_or_the_deadline() {
        let mut asked = 0;
        let third = || {
            asked += 1;
            Ok((asked == 3).then_some(()))
        };
        within(LIMIT, third).unwrap();
        let error = within(LIMIT, || Err(io::ErrorKind::NotFound.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(within(Duration::ZERO, || Ok(None)).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
