//! IPv6 extension headers in front of every packet that the stack receives.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use netstacks::{Datagram, Datagrams, Listener, Netstack};
use platform::{Capabilities, Link, MemoryLink, PacketBuffer, PacketMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Flavour, SERVER_V6, assert_same, config, is_smoltcp, link, pattern, run_whole};

const HOP_BY_HOP: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];
const DESTINATION_OPTIONS: [u8; 16] = [0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A link that puts extension headers into the packets that arrive.
pub(crate) struct Extending {
    link: MemoryLink,
    /// Whether destination options are among them.
    both: bool,
}

impl Extending {
    fn extend(&self, buffer: &mut PacketBuffer) -> io::Result<()> {
        let mut packet = buffer.packet().to_vec();
        let mut extensions = HOP_BY_HOP.to_vec();
        extensions[0] = packet[6];
        if self.both {
            extensions[0] = 60;
            extensions.extend(DESTINATION_OPTIONS);
            extensions[8] = packet[6];
        }
        packet[6] = 0;
        let len = u16::from_be_bytes([packet[4], packet[5]]) + extensions.len() as u16;
        packet[4..6].copy_from_slice(&len.to_be_bytes());
        packet.splice(40..40, extensions);
        buffer.storage_mut()[..packet.len()].copy_from_slice(&packet);
        let meta = buffer.meta();
        buffer.filled(packet.len(), meta)
    }
}

impl Link for Extending {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let count = self.link.try_recv(buffers)?;
        buffers[..count].iter_mut().try_for_each(|buffer| self.extend(buffer))?;
        Ok(count)
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.link.try_send(meta, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_readable(cx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_writable(cx)
    }
}

/// smoltcp itself reads hop-by-hop options and no other extension header, so it gets these alone.
pub(crate) fn behind_extension_headers<S: Netstack<Extending>>(flavour: Flavour) {
    /// With the extension headers, less than the MTU.
    const LEN: usize = 1_000;
    let (link, other_end) = link(flavour);
    let link = Extending { link, both: !is_smoltcp::<S>() };
    let to: SocketAddr = SERVER_V6.parse().unwrap();
    run_whole::<_, S>(
        flavour,
        link,
        other_end,
        &config(),
        async |mut listener, datagrams| {
            let mut stream = listener.accept().await.unwrap();
            let mut bytes = [0; LEN];
            stream.read_exact(&mut bytes).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
            let Datagram { len, local, peer } = datagrams.recv(&mut bytes).await.unwrap();
            datagrams.try_send(local, peer, &bytes[..len]).unwrap();
        },
        move |peer| {
            let stream = peer.connect(to);
            stream.write_all(&pattern(30, LEN));
            let mut bytes = [0; LEN];
            stream.read_exact(&mut bytes);
            assert_same(&bytes, &pattern(30, LEN));
            stream.finish();
            let socket = peer.bind(true);
            socket.send(&pattern(31, LEN), to);
            let (answer, from) = socket.recv();
            assert_same(&answer, &pattern(31, LEN));
            assert_eq!(from, to);
        },
    );
}
