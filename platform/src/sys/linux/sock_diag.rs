//! The congestion control of TCP connections, as the kernel reports it (`sock_diag(7)`).

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::time::Duration;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NlasIterator};
use netlink_sys::constants::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`, and `INET_DIAG_CONG` of `linux/inet_diag.h`.
const BY_FAMILY: u16 = 20;
const CONGESTION: u16 = 4;

/// The lengths of `struct nlmsghdr`, `inet_diag_req_v2` and `inet_diag_msg`, in bytes.
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = 56;
const SOCKET_LEN: usize = 72;

/// The states of a connection that both ends have opened: ESTABLISHED, FIN-WAIT, CLOSE-WAIT, LAST-ACK and CLOSING
/// (`net/tcp_states.h`).
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// `TCP_CA_NAME_MAX` of `net/tcp.h`, with the zero at the end.
const NAME_LEN: usize = 16;

/// The kernel sends at most this much at once (`net/netlink/af_netlink.c`, `netlink_recvmsg`).
const ANSWER_LEN: usize = 32 << 10;

/// How many answers are read: some hundred connections each.
const MOST_ANSWERS: usize = 64;

const PATIENCE: Duration = Duration::from_secs(1);

/// The names of the congestion controls of the TCP connections in the calling thread's network, of the first thousands of
/// them. None if the kernel does not tell. The kernel walks its table of all connections, which takes milliseconds.
pub fn congestion_controls() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // The kernel may lack IPv6, or the module of this interface.
        let _untold = ask(family as u8, &mut names);
    }
    names
}

fn ask(family: u8, names: &mut BTreeSet<String>) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    SockRef::from(&socket).set_read_timeout(Some(PATIENCE))?;
    socket.send(&request(family), 0)?;
    let mut answer = Vec::with_capacity(ANSWER_LEN);
    for _ in 0..MOST_ANSWERS {
        answer.clear();
        socket.recv(&mut answer, 0)?;
        if read(&answer, names) {
            break;
        }
    }
    Ok(())
}

/// Asks for all TCP connections of a family.
fn request(family: u8) -> Vec<u8> {
    let mut bytes = ((HEADER_LEN + REQUEST_LEN) as u32).to_ne_bytes().to_vec();
    bytes.extend([BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP].map(u16::to_ne_bytes).concat());
    bytes.resize(HEADER_LEN, 0);
    bytes.extend([family, libc::IPPROTO_TCP as u8, 1 << (CONGESTION - 1), 0]);
    bytes.extend(STATES.to_ne_bytes());
    bytes.resize(HEADER_LEN + REQUEST_LEN, 0);
    bytes
}

/// Adds the names in an answer. Returns whether it is the last one: its end, an error, or something else.
fn read(mut answer: &[u8], names: &mut BTreeSet<String>) -> bool {
    while !answer.is_empty() {
        let Ok(message) = NetlinkBuffer::new_checked(answer) else { return true };
        if message.message_type() != BY_FAMILY {
            return true;
        }
        let attributes = NlasIterator::new(message.payload().get(SOCKET_LEN..).unwrap_or_default());
        let controls = attributes.map_while(Result::ok).filter(|attribute| attribute.kind() == CONGESTION);
        names.extend(controls.filter_map(|attribute| name(attribute.value()).map(ToOwned::to_owned)));
        let len = (message.length() as usize).next_multiple_of(4);
        answer = answer.get(len..).unwrap_or_default();
    }
    false
}

fn name(value: &[u8]) -> Option<&str> {
    let name = CStr::from_bytes_until_nul(value).ok()?.to_str().ok()?;
    let is_name = (1..NAME_LEN).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (4 + value.len()) as u16;
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_LEN + payload.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER_LEN, 0);
        bytes.extend(payload);
        bytes
    }

    /// A connection with this value of its congestion control, after another attribute.
    fn connection(control: &[u8]) -> Vec<u8> {
        message(BY_FAMILY, &[vec![0; SOCKET_LEN], attribute(8, &[0]), attribute(CONGESTION, control)].concat())
    }

    fn names(answer: &[u8]) -> (Vec<String>, bool) {
        let mut names = BTreeSet::new();
        let is_last = read(answer, &mut names);
        (names.into_iter().collect(), is_last)
    }

    #[test]
    fn each_name_is_read_until_the_end() {
        let (end, none) = (message(3, &[0; 4]), message(BY_FAMILY, &[0; SOCKET_LEN]));
        let two = [connection(b"cubic\0"), none.clone(), connection(b"bbr\0"), connection(b"cubic\0")].concat();
        assert_eq!(names(&two), (vec!["bbr".to_owned(), "cubic".to_owned()], false));
        assert_eq!(names(&[two, end, connection(b"reno\0")].concat()).0, ["bbr", "cubic"]);
        for (answer, is_last) in [(vec![], false), (none, false), (message(2, &[0; 20]), true)] {
            assert_eq!(names(&answer), (vec![], is_last));
        }
    }

    #[test]
    fn an_answer_that_is_cut_or_lies_adds_no_other_name() {
        let whole = [connection(b"cubic\0"), connection(b"bbr\0")].concat();
        for len in 0..whole.len() {
            assert!(names(&whole[..len]).0.iter().all(|name| ["cubic", "bbr"].contains(&name.as_str())), "{len}");
        }
        // Lengths of a message and of an attribute.
        for at in [0, HEADER_LEN + SOCKET_LEN, HEADER_LEN + SOCKET_LEN + 8] {
            for lie in [0_u16, 1, 3, 4, 5, 17, u16::MAX] {
                let mut lying = whole.clone();
                lying[at..at + 2].copy_from_slice(&lie.to_ne_bytes());
                let (found, _) = names(&lying);
                assert!(found.iter().all(|name| ["cubic", "bbr"].contains(&name.as_str())), "{at} {lie}: {found:?}");
            }
        }
        for odd in [&b""[..], b"\0", b"cubic", b"a b\0", b"\x1b[2J\0", b"\xff\0", b"a-name-of-seventeen\0"] {
            assert_eq!(names(&connection(odd)), (vec![], false), "{odd:?}");
        }
    }
}
